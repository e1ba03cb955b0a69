"""Copies out of a process straight into a file."""

import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpusnap.native.checksum import FASTEST_NUMBER
from gpusnap.native.extension import EXTENSION

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PAGE = 4096
_MOST = 256 * _PAGE
"""Bytes of the longest buffer."""

_STORED = struct.Struct("=QII")  # struct gpusnap_stored


class Outlet(NamedTuple):
    """An open file, and where in it to write."""

    descriptor: int
    position: int


class Stored(NamedTuple):
    """Memory that is in a file: where it was, counted from a base, its bytes, their CRC-32."""

    offset: int
    length: int
    crc: int


class Sent(NamedTuple):
    """What a copy came to.

    Attributes:
        length: Bytes of the runs, from the first on, that need no second look.
        stored: What of them is in the file, one behind the other; the rest is pages of zeros.
    """

    length: int = 0
    stored: Sequence[Stored] = ()


def copy_straight(
    pid: int, base: int, runs: Sequence[tuple[int, int]], buffer: "Buffer", outlet: Outlet
) -> Sent:
    """Copy memory of a process, which should not run meanwhile, into a file.

    It goes piece by piece, each while it is in the processor's cache, and without pages of zeros;
    of a piece with very many holes some go along. Up to a piece of which the kernel refuses some;
    without the extension none is copied.

    Args:
        pid: The process.
        base: Address that offsets are counted from. No piece reaches over a multiple of the
            buffer's length, counted from there.
        runs: Offsets and lengths of the memory, whole pages, ascending.
        buffer: Any writable C-contiguous buffer of whole pages, 256 at most.
        outlet: Where it goes.

    Raises:
        OSError: Writing failed. The file may have more than nothing then.
    """
    pages = sum(length for _, length in runs) // _PAGE
    if EXTENSION is None or not pages:
        return Sent()
    lib, ffi = EXTENSION
    with ffi.from_buffer("uint8_t[]", buffer, require_writable=True) as data:
        step = len(data)
        if not 0 < step <= _MOST or step % _PAGE:
            raise ValueError(f"A buffer of {step} bytes")
        asked = (base, step, outlet.position, pid, outlet.descriptor)
        copy = ffi.new("struct gpusnap_straight[]", [asked])
        table = ffi.new("struct gpusnap_run[]", runs)
        stored = ffi.new("struct gpusnap_stored[]", pages)
        count = lib.gpusnap_copy_straight(
            FASTEST_NUMBER, copy, table, len(runs), _PAGE, data, step, stored, pages
        )
    if error := copy[0].error:
        raise OSError(error, os.strerror(error))
    found = _STORED.iter_unpack(ffi.buffer(stored, count * _STORED.size))
    return Sent(copy[0].done, [*map(Stored._make, found)])
