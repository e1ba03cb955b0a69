"""Processes with a number that was chosen."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

_LAST = Path("/proc/sys/kernel/ns_last_pid")


@contextlib.contextmanager
def next_pid(pid: int) -> Iterator[None]:
    """Have the kernel give this PID next, as far as no other program is faster.

    It then goes on where it was: later PIDs may be kept free for restores of tests beside.
    """
    before = _LAST.read_text()
    _LAST.write_text(str(pid - 1))
    try:
        yield
    finally:
        _LAST.write_text(before)
