"""Copies from and to the memory of another process, CRC-32 on the way.

The extension copies with process_vm_readv and process_vm_writev, in steps that are still in the
processor's cache when their CRC-32 is computed. What those refuse goes through /proc/PID/mem,
which reads and writes private memory whatever its protection: memory without access, writes to
read-only memory, and everything where the calls are missing or a seccomp filter forbids them.
"""

import errno
import os
from typing import TYPE_CHECKING

from gpusnap.errors import UsageError
from gpusnap.native.checksum import FASTEST_NUMBER, crc32
from gpusnap.native.extension import EXTENSION
from gpusnap.native.fault import ENDED, MemoryFault, fault, opened
from gpusnap.native.pagemap import PAGE, is_guard

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STEP = 1 << 20
_ADDRESSES = 1 << 63


def _check(address: int, length: int) -> None:
    if not 0 <= address <= _ADDRESSES - length:
        raise UsageError(f"No process has {length} bytes of memory at {address:#x}")


def _copy_in(
    pid: int, address: int, view: memoryview, crc: int, *, checksum: bool
) -> tuple[int, int]:
    """Read until something is refused; give the length that was read and the new CRC-32."""
    if EXTENSION is None:
        return 0, crc
    lib, ffi = EXTENSION
    value = ffi.new("uint32_t *", crc)
    wanted = value if checksum else ffi.NULL
    with ffi.from_buffer("uint8_t[]", view, require_writable=True) as data:
        done = lib.gpusnap_read_process(FASTEST_NUMBER, pid, address, data, len(data), wanted)
    return done, value[0]


def _copy_out(pid: int, address: int, view: memoryview) -> int:
    """Write until something is refused; give the length that was written."""
    if EXTENSION is None:
        return 0
    lib, ffi = EXTENSION
    with ffi.from_buffer("uint8_t[]", view) as data:
        return lib.gpusnap_write_process(pid, address, data, len(data))


def _guard_pages(pid: int, address: int, view: memoryview) -> int:
    """Fill in the rest of a page, if of a guard region, which holds nothing."""
    with opened(pid, "pagemap", address) as pagemap:
        if not is_guard(pagemap, address):
            return 0
    length = min(PAGE - address % PAGE, len(view))
    view[:length] = bytes(length)
    return length


def _read_refused(pid: int, address: int, view: memoryview) -> int:
    """Read as much as there is at once of what was refused, at least one byte."""
    with opened(pid, "mem", address) as memory:
        try:
            length = os.preadv(memory, [view], address)
        except OSError as error:
            length = _guard_pages(pid, address, view) if error.errno == errno.EIO else 0
            if not length:
                raise fault(pid, address, error) from error
    return _some(pid, address, length)


def _write_refused(pid: int, address: int, view: memoryview) -> int:
    """Write as much as can be at once of what was refused, at least one byte."""
    with opened(pid, "mem", address, os.O_WRONLY) as memory:
        try:
            length = os.pwrite(memory, view, address)
        except OSError as error:
            raise fault(pid, address, error) from error
    return _some(pid, address, length)


def _some(pid: int, address: int, length: int) -> int:
    if length == 0:  # what the file of a process without memory gives
        raise MemoryFault(pid, address, ENDED)
    return length


def read_process(pid: int, address: int, buffer: "Buffer", *, checksum: bool = True) -> int:
    """Fill a buffer from the memory of a process, which should not run meanwhile.

    Args:
        pid: The process, of which the caller may read memory (ptrace access).
        address: Where to begin.
        buffer: Any writable C-contiguous buffer.
        checksum: Whether the CRC-32 is computed.

    Returns:
        CRC-32 of what was read, 0 where none is wanted. Guard regions read as zeroes.

    Raises:
        MemoryFault: Not all could be read; what the buffer then holds is not to be used.
        UsageError: No process has memory there.
    """
    view = memoryview(buffer).cast("B")
    _check(address, len(view))
    done, crc = _copy_in(pid, address, view, 0, checksum=checksum)
    while done < len(view):
        length = _read_refused(pid, address + done, view[done : done + _STEP])
        if checksum:
            crc = crc32(view[done : done + length], crc)
        done += length
        length, crc = _copy_in(pid, address + done, view[done:], crc, checksum=checksum)
        done += length
    return crc


def write_process(pid: int, address: int, data: "Buffer") -> None:
    """Write to the memory of a process, which should not run meanwhile.

    Args:
        pid: The process, of which the caller may write memory (ptrace access).
        address: Where to begin.
        data: Any C-contiguous buffer.

    Raises:
        MemoryFault: Not all could be written; an unknown part of it was.
        UsageError: No process has memory there.
    """
    view = memoryview(data).cast("B")
    _check(address, len(view))
    done = _copy_out(pid, address, view)
    while done < len(view):
        done += _write_refused(pid, address + done, view[done : done + _STEP])
        done += _copy_out(pid, address + done, view[done:])
