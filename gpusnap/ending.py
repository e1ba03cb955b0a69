"""Processes ended by force: that very one, never a stranger that got its PID meanwhile."""

import errno
import itertools
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

from gpusnap.target import gone, identity
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
    """Wait until processes have ended, each with all its threads; return those that have not.

    One that has ended and waits to be reaped by its parent is not waited for.
    """
    deadline = time.monotonic() + timeout_s
    left = tuple(itertools.filterfalse(gone, processes))
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        left = tuple(itertools.filterfalse(gone, left))
    return left


def still_there(process: ProcessId) -> str:
    """What to say of a process that was killed and that the kernel has not ended yet."""
    return f"Process {process.pid} was killed but is still there"
