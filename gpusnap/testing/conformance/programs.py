"""What the suite asks of the programs it runs a backend on."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import pytest

from gpusnap.target import find_target
from gpusnap.types import Target

PATIENCE_SECONDS = 60.0
"""How long anything may take that has to happen."""

QUIET_SECONDS = 0.6
"""How long a stopped program is watched."""


class DeviceProgram(Protocol):
    """A running process that holds device memory and computes on it in small steps."""

    @property
    def pid(self) -> int:
        """Its PID."""
        raise NotImplementedError

    def steps(self) -> int:
        """How many steps of device work it has done so far."""
        raise NotImplementedError


StartProcess: TypeAlias = Callable[[], DeviceProgram]
"""Starts one more program; whoever provides it also ends the programs."""


def require(holds: bool, text: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Fail the test with a sentence about the backend."""
    if not holds:
        pytest.fail(text)


def await_steps(program: DeviceProgram, more: int = 3) -> None:
    """Wait until a program has computed on."""
    wanted = program.steps() + more
    until = time.monotonic() + PATIENCE_SECONDS
    while program.steps() < wanted:
        require(time.monotonic() < until, f"Process {program.pid} does not compute on")
        time.sleep(0.01)


def require_stopped(program: DeviceProgram) -> None:
    """Check that a program does no device work."""
    steps = program.steps() + 1  # one that had just ended may still be written down, even late
    time.sleep(QUIET_SECONDS)
    require(program.steps() <= steps, f"Process {program.pid} computes on while it is stopped")


@contextmanager
def stranger() -> Iterator[Target]:
    """A process that has nothing to do with any device."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield find_target(process.pid)
        finally:
            process.kill()


def vanished_pid() -> int:
    """The PID of a process that has just ended."""
    with stranger() as target:
        return target.root.pid
