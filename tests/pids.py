"""Processes by their numbers."""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_LAST = Path("/proc/sys/kernel/ns_last_pid")
_REAPED_S = 60.0


def kill(pid: int) -> None:
    """Kill a process, which may end by itself at this very moment."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def next_pid(pid: int) -> Iterator[None]:
    """Have the kernel give this PID next, as far as no other program is faster.

    It then goes on where it was: later PIDs may be kept free for restores of tests beside. One at
    a time does this: else one would go on where another had it begin. Whoever had the PID may not
    have been reaped yet, for which it waits.
    """
    deadline = time.monotonic() + _REAPED_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    with _LAST.open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        before = _LAST.read_text()
        _LAST.write_text(str(pid - 1))
        try:
            yield
        finally:
            _LAST.write_text(before)
            fcntl.flock(turn, fcntl.LOCK_UN)  # a child that was forked has it open too
