"""What goes wrong with another process's memory."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpusnap.errors import TargetError

ENDED = "the process has ended"

_REASONS = {
    errno.EIO: "nothing is mapped there, or the kernel lets nobody use it",
    errno.ENOENT: ENDED,
    errno.ESRCH: ENDED,
}


class MemoryFault(TargetError):
    """Memory of a process could not be read or written, or the process is gone.

    Attributes:
        pid: The process.
        address: The first byte that was not transferred.
        reason: Why.
    """

    def __init__(self, pid: int, address: int, reason: str) -> None:
        super().__init__(f"Memory of process {pid} cannot be used at {address:#x}: {reason}")
        self.pid = pid
        self.address = address
        self.reason = reason


def fault(pid: int, address: int, error: OSError) -> MemoryFault:
    """Make a fault of what the system answered."""
    number = error.errno or 0
    return MemoryFault(pid, address, _REASONS.get(number, os.strerror(number)))


@contextmanager
def opened(pid: int, name: str, address: int, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file of ``/proc/PID``; a failure to is a fault at the address."""
    try:
        descriptor = os.open(f"/proc/{pid}/{name}", flags | os.O_CLOEXEC)
    except OSError as error:
        raise fault(pid, address, error) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)
