"""Calls of the toy's driver. They run in a worker process, for a driver may hang."""

import time
from pathlib import Path

from . import accelerator


class RefusedError(Exception):
    """The driver refused."""


class Driver:
    """What the worker process offers; its methods are called by name."""

    def move(self, *, root: str, pid: int, before: str, wanted: str, timeout_us: int) -> None:
        """Bring a program from one state into another; no harm if it is there already."""
        state = accelerator.state(Path(root), pid)
        if state is None:
            msg = f"Process {pid} does not use the toy accelerator"
            raise RefusedError(msg)
        if state not in {before, wanted}:
            msg = f"Process {pid} is {state}, it would have to be {before}"
            raise RefusedError(msg)
        accelerator.write(Path(root) / str(pid) / "wanted", wanted)
        _await_state(Path(root), pid, wanted, time.monotonic() + timeout_us / 1e6)


def _await_state(root: Path, pid: int, wanted: str, until: float) -> None:
    while (state := accelerator.state(root, pid)) != wanted:
        if state is None:
            msg = f"Process {pid} ended"
            raise RefusedError(msg)
        if time.monotonic() > until:
            accelerator.write(root / str(pid) / "wanted", state)
            msg = f"Process {pid} is still {state}"
            raise TimeoutError(msg)
        time.sleep(0.002)
