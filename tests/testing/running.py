"""Programs that compute on a simulated machine, started for a test."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpusnap.testing import Machine
from gpusnap.testing.program import count_steps
from tests.pids import kill

PATIENCE_SECONDS = 60.0
STEPS = 1_000
SLOW: dict[str, object] = {"step-us": 100_000}
"""Steps of a program that is to end, and their duration: two minutes, or a moment in a hurry."""

_PROGRAM = Path(__file__).parents[1] / "e2e/paced.py"


def await_true(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, f"waited in vain: {what}"
        time.sleep(0.005)


class Program:
    """A process of ``gpusnap.testing.program``, or of other code with the same kind of log."""

    def __init__(self, machine: Machine, log: Path, *arguments: object) -> None:
        self.log = log
        self.errors = log.with_suffix(".errors")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                env={**os.environ, **machine.environment},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.process.pid,)

    def steps(self) -> int:
        return count_steps(self.log)

    def compute(self, more: int = 3) -> None:
        """Wait until some more steps are done."""
        wanted = self.steps() + more
        await_true(lambda: self.steps() >= wanted or not self.lives(), "steps")
        assert self.steps() >= wanted, self.errors.read_text()

    def lives(self) -> bool:
        """True while it runs, as a child of this process or restored, as one of PID 1."""
        if self.process.poll() is None:
            return True
        try:
            return str(self.log).encode() in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return False

    def gone(self) -> bool:
        """True once its PID is free again."""
        self.process.poll()  # reaps it; what was restored is reaped by PID 1
        return not Path(f"/proc/{self.pid}").exists()

    def stands_still(self) -> bool:
        """True where no step is done any more; one that had ended may still be written down."""
        steps = self.steps()
        time.sleep(0.5)
        return self.steps() <= steps + 1

    def stop(self) -> None:
        """Stop it by a signal, which all of its threads have heeded then."""
        os.kill(self.pid, signal.SIGSTOP)
        stats = list(Path(f"/proc/{self.pid}/task").glob("*/stat"))
        await_true(
            lambda: all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats),
            "all threads stand still",
        )

    def finish(self) -> str:
        """Have it hurry to its end; returns the log."""
        self.log.with_suffix(".hurry").touch()
        await_true(lambda: self.done() or not self.lives(), "the last line")
        assert self.done(), self.errors.read_text()
        return self.log.read_text()

    def done(self) -> bool:
        return self.log.exists() and "\ndone " in self.log.read_text()

    def kill(self) -> None:
        if self.lives():
            kill(self.pid)
        await_true(lambda: not self.lives(), "the end")
        self.process.wait()


def start_program(machine: Machine, log: Path, steps: int = 100_000, **options: object) -> Program:
    """Start the ready-made program; options are those of its command line.

    It does not hurry to its end before :meth:`Program.finish`.
    """
    named = (part for name, value in options.items() for part in (f"--{name}", value))
    arguments = (_PROGRAM, log, steps, *named)
    return Program(machine, log, *arguments)


def run_code(machine: Machine, code: str) -> str:
    """Run Python code that uses a device to its end; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **machine.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
