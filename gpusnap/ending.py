"""Processes ended by force: that very one, never a stranger that got its PID meanwhile."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

from gpusnap.target import alive, identity
from gpusnap.types import ProcessId

_LOOK_S = 0.01


def kill(process: ProcessId) -> None:
    """Kill a process; one that is gone is no matter.

    Args:
        process: Its identity as this process reads it, without a tick's difference.
    """
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            # The handle stands for whoever has the PID now: only then who that is stays so.
            if identity(process.pid) == process:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def wait_gone(processes: Iterable[ProcessId], timeout_s: float) -> tuple[ProcessId, ...]:
    """Wait until processes no longer run; return those that still do (zombies do not run)."""
    deadline = time.monotonic() + timeout_s
    left = tuple(filter(alive, processes))
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        left = tuple(filter(alive, left))
    return left
