"""The program the demonstration saves and brings back: started, followed, ended."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpusnap.errors import DeadlineError, GpusnapError, NoBackendError
from gpusnap.plugins import Plugins
from gpusnap.target import alive, identity
from gpusnap.testing import create_machine
from gpusnap.types import ProcessId

_PATIENCE_S = 120.0
"""How long the program may make no progress: a first use of a GPU takes a while."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A program with a checkable result, for one backend; memory in bytes.

    Attributes:
        compilers: Places of the compiler that it needs, one of which is enough.
    """

    backend: str
    module: str
    memory: int
    compilers: tuple[str, ...] = ()

    @property
    def compiler(self) -> str | None:
        """The compiler's path; None where there is none."""
        return next(filter(None, map(shutil.which, self.compilers)), None)

    @property
    def lacks_compiler(self) -> bool:
        """Whether it cannot be compiled here."""
        return bool(self.compilers) and self.compiler is None


_SIMULATED = Kind(backend="simulated", module="gpusnap.testing.program", memory=16 << 20)
_KINDS = {
    "nvidia": Kind(backend="nvidia", module="gpusnap_nvidia.program", memory=256 << 20),
    "amd": Kind(
        backend="amd",
        module="gpusnap_amd.program",
        memory=256 << 20,
        compilers=("hipcc", "/opt/rocm/bin/hipcc"),
    ),
    _SIMULATED.backend: _SIMULATED,
}
BACKENDS = tuple(_KINDS)


def choose_kind(plugins: Plugins, backend: str | None) -> Kind:
    """The program for a backend; without one for a real device if there is one.

    Raises:
        NoBackendError: The named backend cannot work here, or its program cannot be compiled.
    """
    if backend is None:
        names = {each.name for each in plugins.usable()}
        real = (kind for name, kind in _KINDS.items() if name in names)
        return next((kind for kind in real if not kind.lacks_compiler), _SIMULATED)
    if backend == _SIMULATED.backend:
        return _SIMULATED  # which becomes usable once its machine is made
    probe = plugins.backend(backend).probe()
    if not probe.usable:
        raise NoBackendError(
            f"Backend {backend} cannot work here: {'; '.join(probe.reasons)}",
            cure=f"Use --backend {_SIMULATED.backend}",
        )
    if _KINDS[backend].lacks_compiler:
        raise NoBackendError(
            f"The program for backend {backend} needs {_KINDS[backend].compilers[0]}, which is not "
            "there",
            cure=f"Install it with the vendor's toolkit, or use --backend {_SIMULATED.backend}",
        )
    return _KINDS[backend]


def prepare(kind: Kind, folder: Path) -> dict[str, str]:
    """Make what a backend needs in a folder; returns variables for program and gpusnap."""
    if kind.backend != _SIMULATED.backend:
        return {} if kind.compiler is None else {"GPUSNAP_HIPCC": kind.compiler}
    return create_machine(folder / "machine", memory=4 * kind.memory).environment


class Program:
    """One run of the program."""

    def __init__(self, kind: Kind, name: str, folder: Path, steps: int, step_us: int) -> None:
        self.log = folder / f"{name}.log"
        self._errors = folder / f"{name}.errors"
        self._pid_file = folder / f"{name}.pid"
        self._steps = steps
        self._kind = kind
        self.process = self._start(folder, step_us)

    def _start(self, folder: Path, step_us: int) -> ProcessId:
        """Start it as a child of init, which reaps it, so that its PID is free afterwards."""
        self.log.touch()
        command = [sys.executable, "-P", "-m", self._kind.module, str(self.log), str(self._steps)]
        command += ["--memory", str(self._kind.memory), "--step-us", str(step_us)]
        with self._errors.open("wb") as errors:
            subprocess.run(
                ["setsid", "--fork", "sh", "-c", self._script(command)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                check=True,
            )
        self._await(lambda: self._read_pid() is not None)
        process = identity(self._read_pid() or 0)
        if process is None:
            raise self._failed()
        return process

    def _script(self, command: list[str]) -> str:
        return f"echo $$ >{shlex.quote(str(self._pid_file))}; exec {shlex.join(command)}"

    def _read_pid(self) -> int | None:
        text = self._pid_file.read_text() if self._pid_file.exists() else ""
        return int(text) if text.endswith("\n") else None

    def _failed(self) -> GpusnapError:
        said = self._errors.read_text(errors="replace").splitlines()[-3:]
        return GpusnapError("The program of the demonstration ended before its time", details=said)

    def _await(self, reached: Callable[[], bool]) -> None:
        """Wait as long as the program makes progress."""
        seen, since = -1, time.monotonic()
        while not reached():
            if (done := self.steps_done()) > seen:
                seen, since = done, time.monotonic()
            if time.monotonic() - since > _PATIENCE_S:
                msg = f"The program of the demonstration made no progress for {_PATIENCE_S:g} s"
                raise DeadlineError(msg)
            time.sleep(0.02)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return alive(self.process)

    def steps_done(self) -> int:
        """How many lines it has logged."""
        return self.log.read_bytes().count(b"\n")

    def await_step(self, step: int) -> int:
        """Wait until it has come so far; returns how far it is.

        Raises:
            GpusnapError: It ended first, or stands still.
        """
        self._await(lambda: self.steps_done() >= step or not self.alive)
        if not self.alive:
            raise self._failed()
        return self.steps_done()

    def await_end(self) -> bytes:
        """Wait until it has ended; returns its log.

        Raises:
            GpusnapError: It failed, or stands still.
        """
        self._await(lambda: not self.alive)
        log = self.log.read_bytes()
        if b"done " not in log:
            raise self._failed()
        return log

    def adopt(self) -> None:
        """Follow the restored process: the same PID, another start."""
        self.process = identity(self.process.pid) or self.process

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.alive:
            os.kill(self.process.pid, signal.SIGKILL)
