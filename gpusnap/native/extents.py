"""Chunks that lie in a file as they were in memory, checked and written back in one call."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpusnap.native.checksum import FASTEST_NUMBER
from gpusnap.native.extension import EXTENSION

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PAGE = 4096


class Extent(NamedTuple):
    """Bytes in a file, and where they belong.

    Attributes:
        position: In the file.
        length: In bytes.
        address: In the process.
        pid: The process; 0 where they are only checked.
        crc: Their CRC-32.
    """

    position: int
    length: int
    address: int
    pid: int
    crc: int


def put_extents(descriptor: int, extents: Sequence[Extent], buffer: "Buffer") -> int:
    """Read extents, compare each with its CRC-32 and write it into its process.

    Pages of zeros are not written: memory that is to be filled is empty.

    Args:
        descriptor: Of the file.
        extents: In the order in which they are done.
        buffer: Has room for the longest; what it holds afterwards means nothing.

    Returns:
        How many were done with. The next one could not be read, is not what it was, or was not
        taken by the process, wholly or in part; doing it step by step tells which. Always 0
        where the extension was not built.
    """
    if EXTENSION is None or not extents:
        return 0
    if max(each.length for each in extents) > memoryview(buffer).nbytes:
        raise ValueError("The buffer is too small")
    lib, ffi = EXTENSION
    table = ffi.new("struct gpusnap_extent[]", [tuple(each) for each in extents])
    with ffi.from_buffer("uint8_t[]", buffer, require_writable=True) as room:
        return lib.gpusnap_put_extents(
            FASTEST_NUMBER, descriptor, table, len(extents), _PAGE, room, len(room)
        )
