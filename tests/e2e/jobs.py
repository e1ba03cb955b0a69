"""Target programs on the simulated accelerator, and gpusnap run on them as a user would."""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpusnap.target import alive, identity
from gpusnap.testing import SIM_VARIABLE, create_machine
from gpusnap.testing.program import count_steps, reference_log
from gpusnap.types import ProcessId
from tests.e2e.loaded import Running
from tests.pids import kill

PATIENCE_S = 90.0
STEPS = 300
SLOW_US = 500_000
"""Steps of a job that is to end, and their duration: some minutes, or a moment in a hurry."""

SMALL = 16 * 4096
"""Bytes of device memory of which a job reads and changes all within 16 steps."""

_PROGRAM = Path(__file__).with_name("paced.py")
_STEP_US = 20_000
"""Duration of a step unless told: a job computes for a tenth of it and leaves others the rest."""


@dataclass(frozen=True)
class Site:
    """A simulated machine with a repository and a state folder of its own."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, devices: int = 1) -> "Site":
        folder.mkdir(parents=True, exist_ok=True)
        create_machine(folder / "machine", devices=devices)
        return cls(folder)

    @property
    def machine(self) -> Path:
        return self.folder / "machine"

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            SIM_VARIABLE: str(self.machine),
            "GPUSNAP_REPO": str(self.repository),
            "GPUSNAP_STATE_DIR": str(self.folder / "state"),
        }

    def gpusnap(self, *arguments: object, **changes: str) -> "subprocess.CompletedProcess[str]":
        """Run the command line."""
        with tempfile.TemporaryDirectory() as streams:
            running = Running({**self.environment, **changes}, Path(streams), arguments)
            ended = running.wait()
        return subprocess.CompletedProcess("gpusnap", ended.code, ended.output, ended.errors)

    def typed(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        """Run the command line as a user does, in a Python of its own."""
        return self.run("-m", "gpusnap", *arguments)

    def run(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        """Run Python on something, in this site's environment."""
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )


@dataclass
class Job:
    """A target: the ready-made program of ``gpusnap.testing``."""

    site: Site
    steps: int
    process: ProcessId
    log: Path
    _killed: list[int] = field(default_factory=list)

    @classmethod
    def start(cls, site: Site, name: str = "job", steps: int = 10_000, **options: int) -> "Job":
        """Start it as init's child, so that its PID is free as soon as it is gone."""
        log, pid_file = site.folder / f"{name}.log", site.folder / f"{name}.pid"
        log.unlink(missing_ok=True)
        program = [str(_PROGRAM), str(log), str(steps)]
        for option, value in ({"step_us": _STEP_US} | options).items():
            program += [f"--{option.replace('_', '-')}", str(value)]
        start_detached([sys.executable, *program], pid_file, site.environment)
        await_true(lambda: count_steps(log) > 0, "the program computes")
        process = identity(int(pid_file.read_text()))
        assert process is not None
        return cls(site, steps, process, log)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def hurry(self) -> Path:
        """The file that has it hurry as long as it exists."""
        return self.log.with_suffix(".hurry")

    @property
    def done(self) -> int:
        return count_steps(self.log)

    @property
    def alive(self) -> bool:
        return alive(self.process)

    def computes(self) -> bool:
        """Whether it makes progress; waits for some."""
        before = self.done
        return becomes_true(lambda: self.done > before + 1, PATIENCE_S)

    def is_intact(self) -> bool:
        """Whether it computes on with the memory that it had, as long as that is ``SMALL``."""
        before = self.done
        await_true(lambda: self.done > before + 20, "it computes with all of its memory")
        lines = self.log.read_text().rpartition("\n")[0].splitlines()
        return lines == reference_log(len(lines), SMALL).splitlines()[:-1]

    def adopt(self) -> None:
        """Take the restored process for ours: same PID, another start."""
        restored = identity(self.pid)
        assert restored is not None
        self.process = restored

    def finish(self) -> str:
        """Have it hurry to its end and return its whole log."""
        self.hurry.touch()
        await_true(lambda: not self.alive, "the program ends", 120.0)
        return self.log.read_text()

    def expected(self) -> str:
        return reference_log(self.steps)

    def kill(self) -> None:
        if self.alive:
            kill(self.pid)
        await_true(lambda: identity(self.pid) is None, "the PID is free")


def start_detached(command: list[str], pid_file: Path, environment: dict[str, str]) -> None:
    """Start a program in a session of its own, as a child of init, without open pipes."""
    script = f'echo $$ > "{pid_file}"; exec "$@"'
    pid_file.unlink(missing_ok=True)
    subprocess.run(
        ["setsid", "-f", "sh", "-c", script, "sh", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    await_true(lambda: pid_file.exists() and pid_file.read_text() != "", "the shell starts")
    pid = int(pid_file.read_text())
    await_true(lambda: os.fsencode(script) not in _command(pid), "the program takes its place")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # it has ended already


def becomes_true(condition: "object", timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    assert callable(condition)
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def await_true(condition: "object", what: str, timeout_s: float = PATIENCE_S) -> None:
    assert becomes_true(condition, timeout_s), f"not within {timeout_s:g} s: {what}"
