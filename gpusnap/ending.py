"""Processes ended by force: that very one, never a stranger that got its PID meanwhile."""

import errno
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

from gpusnap.target import alive, identity
from gpusnap.types import ProcessId

_LOOK_S = 0.01
_NO_PROCESS = frozenset({errno.ESRCH, errno.EINVAL, errno.ENOENT})
"""What the kernel says where nobody has a PID, or where it is the number of a mere thread."""


def kill(process: ProcessId) -> None:
    """Kill a process; one that is gone is no matter.

    Args:
        process: Its identity as this process reads it, without a tick's difference.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno in _NO_PROCESS:
            return
        raise
    try:
        # The handle stands for whoever has the PID now: only then who that is stays so.
        if identity(process.pid) == process:
            with suppress(ProcessLookupError):
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
