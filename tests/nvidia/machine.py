"""A machine with the simulated driver: its libraries, its numbers, its targets."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpusnap.target import find_target, identity
from gpusnap.types import ProcessId, Target
from gpusnap_nvidia.program import reference_log

SOURCES = Path(__file__).parent / "simcuda"
VICTIMS = Path(__file__).with_name("victims.py")
PATIENCE_S = 60.0

_STRICT = ["-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes"]
_COMPILE = ["gcc", "-std=gnu11", "-O1", "-g", *_STRICT, "-D_GNU_SOURCE"]
_LINK = ["-fvisibility=hidden", "-fPIC", "-shared", "-pthread"]
_TARGET = ["memory", "api", "kernels", "transitions", "restore_thread"]
_CUDA_SOURCES = ["control", *_TARGET, "checkpoint", "symbols"]


def build(name: str, sources: list[str], folder: Path, *options: str) -> Path:
    """Compile one of the simulated libraries."""
    library = folder / name
    files = [str(SOURCES / f"{source}.c") for source in sources]
    command = [
        *_COMPILE,
        *_LINK,
        *options,
        f"-Wl,-soname,{name}",
        "-o",
        str(library),
        *files,
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return library


def build_libraries(folder: Path) -> None:
    """Compile the driver, its NVML, and in ``old`` a driver without checkpoints."""
    (folder / "old").mkdir()
    build("libcuda.so.1", _CUDA_SOURCES, folder)
    build("libcuda.so.1", _CUDA_SOURCES, folder / "old", "-DSIMCUDA_OLD_DRIVER")
    build("libnvidia-ml.so.1", ["control", "nvml"], folder)


class SimulatedMachine:
    """The folder the simulated driver lives in, and the environment that leads to it."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        self.folder = folder
        self.environment = {
            "SIMCUDA_DIR": str(folder / "simcuda"),
            "GPUSNAP_LIBCUDA": str(libraries / "libcuda.so.1"),
            "LD_LIBRARY_PATH": str(libraries),
        }
        for name in ("control", "mail"):
            (folder / "simcuda" / name).mkdir(parents=True)
        self.targets: list[TargetProcess] = []

    def set(self, **numbers: int) -> None:
        """Change the driver's behaviour; see simcuda/README.md."""
        for name, number in numbers.items():
            draft = self.folder / "simcuda" / "new"
            draft.write_text(str(number))
            draft.replace(self._control(name))

    def clear(self, *names: str) -> None:
        """Take numbers back."""
        for name in names:
            self._control(name).unlink(missing_ok=True)

    def _control(self, name: str) -> Path:
        return self.folder / "simcuda" / "control" / name.replace("_", "-")

    def has(self, name: str) -> bool:
        """Whether a number stands, set by a test or by the driver itself."""
        return self._control(name).exists()

    def device_files(self, device: int = 0) -> list[Path]:
        """The allocations on a device."""
        return sorted((self.folder / "simcuda" / f"gpu{device}").glob("*-*"))

    def calls_under_way(self) -> list[Path]:
        """Driver calls that no target has answered yet."""
        return list((self.folder / "simcuda" / "mail").glob("*.request"))

    def start(self, *command: str) -> "TargetProcess":
        """Run Python with the simulated driver in a session of its own."""
        with (self.folder / "stderr.log").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        target = TargetProcess(process)
        self.targets.append(target)
        return target

    def start_program(
        self, steps: int = 100_000, *, memory: int = 1 << 20, name: str = "job", device: int = 0
    ) -> "Program":
        """Run the backend's own GPU program and wait until it computes."""
        log = self.folder / f"{name}.log"
        options = [f"--memory={memory}", f"--device={device}", "--step-us=2000"]
        target = self.start("-m", "gpusnap_nvidia.program", str(log), str(steps), *options)
        program = Program(target, log, steps, memory)
        target.await_true(lambda: program.lines > 2, "the program computes")
        return program

    def start_victim(self, kind: str, *arguments: str) -> "Victim":
        """Run one of victims.py and wait until it computes."""
        log = self.folder / f"{kind}.log"
        target = self.start(str(VICTIMS), kind, str(log), *arguments)
        victim = Victim(target, log)
        target.await_true(lambda: victim.lines > 2, "the victim computes")
        return victim

    def close(self) -> None:
        """Kill all targets."""
        for target in self.targets:
            target.kill()


class TargetProcess:
    """One process tree that was started here."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.pid = process.pid

    @property
    def target(self) -> Target:
        return find_target(self.pid)

    @property
    def identity(self) -> ProcessId | None:
        return identity(self.pid)

    def await_true(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that this process does."""
        await_true(lambda: condition() or self._process.poll() is not None, what)
        assert condition(), f"the target ended before {what}"

    def kill(self) -> None:
        """Kill its whole session and reap it, so that its PID is free."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


class Victim:
    """A process that logs a line a step."""

    def __init__(self, target: TargetProcess, log: Path) -> None:
        self.process = target
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def target(self) -> Target:
        return self.process.target

    @property
    def lines(self) -> int:
        return self.log.read_text().count("\n") if self.log.exists() else 0

    def computes(self) -> bool:
        """Whether it makes progress."""
        before = self.lines
        return becomes_true(lambda: self.lines > before + 1, PATIENCE_S)

    def stands_still(self) -> bool:
        """Whether it makes no progress for a while in which it otherwise would."""
        before = self.lines
        # One step may have been behind the gate when it closed
        while (settled := self.lines) <= before + 1:
            time.sleep(0.3)
            if self.lines == settled:
                return True
        return False


class Program(Victim):
    """The backend's own GPU program, with a result that can be checked."""

    def __init__(self, target: TargetProcess, log: Path, steps: int, memory: int) -> None:
        super().__init__(target, log)
        self.steps = steps
        self.memory = memory

    @property
    def expected(self) -> str:
        return reference_log(self.steps, self.memory)

    def result(self) -> str:
        """Wait for its end and give the log."""
        await_true(lambda: "done" in self.log.read_text(), "the program ends")
        return self.log.read_text()


def becomes_true(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for something."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def await_true(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that has to happen."""
    assert becomes_true(condition, PATIENCE_S), f"not within {PATIENCE_S:g} s: {what}"


def ignore(_done: int, _total: int) -> None:
    """For calls whose progress is not under test."""
