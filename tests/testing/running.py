"""Programs that compute on a simulated machine, started for a test."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpusnap.testing import Machine
from gpusnap.testing.program import count_steps
from tests.pids import kill

PATIENCE_SECONDS = 60.0


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
        """True where no step is done any more."""
        time.sleep(0.1)
        steps = self.steps()
        time.sleep(0.2)
        return self.steps() == steps

    def finish(self) -> str:
        """Wait for the end; returns the log."""
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
    """Start the ready-made program; options are those of its command line."""
    named = (part for name, value in options.items() for part in (f"--{name}", value))
    arguments = ("-m", "gpusnap.testing.program", log, steps, *named)
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
