"""Copies out of a process straight into a file."""

import os
from typing import TYPE_CHECKING, NamedTuple

from gpusnap.native.checksum import FASTEST_NUMBER
from gpusnap.native.extension import EXTENSION
from gpusnap.native.pages import nonzero_pages
from gpusnap.native.pieces import Copied, Part

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PAGE = 4096


class Outlet(NamedTuple):
    """An open file, and where in it to write."""

    descriptor: int
    position: int


class Sent(NamedTuple):
    """What a copy came to.

    Attributes:
        crcs: CRC-32 of each piece that is in the file.
        rest: The piece that ended it by a page of zeros, at the beginning of the buffer.
    """

    crcs: list[int]
    rest: Copied | None = None


def copy_straight(part: Part, first: int, buffer: "Buffer", outlet: Outlet) -> Sent:
    """Copy memory of a process, which should not run meanwhile, into a file.

    It goes piece by piece, each while it is in the processor's cache, up to one with a page of
    zeros, or of which the kernel refuses some; without the extension none is copied.

    Args:
        part: The memory.
        first: Bytes of its first piece.
        buffer: Any writable C-contiguous buffer, as long as each of the other pieces but the last,
            which may be shorter, and not shorter than the first one.
        outlet: Where the pieces go, one behind the other.

    Raises:
        OSError: Writing failed.
    """
    if EXTENSION is None or part.length == 0:
        return Sent([])
    lib, ffi = EXTENSION
    with ffi.from_buffer("uint8_t[]", buffer, require_writable=True) as data:
        step = len(data)
        if not 0 < first <= step:
            raise ValueError("The buffer is too small")
        asked = (part.address, part.length, first, step, outlet.position)
        copy = ffi.new("struct gpusnap_straight[]", [(*asked, part.pid, outlet.descriptor)])
        crcs = ffi.new("uint32_t[]", part.length // step + 2)
        count = lib.gpusnap_copy_straight(FASTEST_NUMBER, copy, _PAGE, data, step, crcs)
    if error := copy[0].error:
        raise OSError(error, os.strerror(error))
    rest = None
    if size := copy[0].rest:
        rest = Copied(crcs[count], nonzero_pages(memoryview(buffer)[:size]))
    return Sent([*crcs[0:count]], rest)
