"""Copies out of processes, many in one call."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpusnap.native.checksum import FASTEST_NUMBER
from gpusnap.native.extension import EXTENSION
from gpusnap.native.memory import read_process
from gpusnap.native.pages import nonzero_pages

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PAGE = 4096


class Part(NamedTuple):
    """Memory of a process: its PID, an address, and bytes."""

    pid: int
    address: int
    length: int


class Copied(NamedTuple):
    """What was read.

    Attributes:
        crc: Its CRC-32.
        runs: The pages that are not all zero, as :func:`nonzero_pages` gives them.
    """

    crc: int
    runs: list[tuple[int, int]]


def read_parts(parts: Sequence[Part], buffer: "Buffer") -> list[Copied]:
    """Read memory of processes, which should not run meanwhile.

    Args:
        parts: What is read. In the buffer they lie one behind the other.
        buffer: Any writable C-contiguous buffer, as long as all of them or longer.

    Returns:
        What came of each. Guard regions read as zeroes.

    Raises:
        MemoryFault: Not all could be read; what the buffer then holds is not to be used.
        UsageError: No process has memory there.
    """
    view = memoryview(buffer).cast("B")
    found = _in_c(parts, view)
    at = sum(part.length for part in parts[: len(found)])
    # The first of these was refused in part: all go another way, which reads what C does not
    for part in parts[len(found) :]:
        piece = view[at : at + part.length]
        crc = read_process(part.pid, part.address, piece)
        found.append(Copied(crc, nonzero_pages(piece)))
        at += part.length
    return found


def _in_c(parts: Sequence[Part], view: memoryview) -> list[Copied]:
    """What came of the first parts, up to one of which the kernel refuses some."""
    if EXTENSION is None or not parts:
        return []
    if sum(part.length for part in parts) > len(view):
        raise ValueError("The buffer is too small")
    lib, ffi = EXTENSION
    table = ffi.new(
        "struct gpusnap_piece[]", [(each.address, each.length, each.pid) for each in parts]
    )
    with ffi.from_buffer("uint8_t[]", view, require_writable=True) as data:
        count = lib.gpusnap_read_pieces(FASTEST_NUMBER, table, len(parts), _PAGE, data, len(data))
    found, at = [], 0
    for part, piece in zip(parts[:count], table, strict=False):
        whole = [(0, part.length)] if piece.whole else nonzero_pages(view[at : at + part.length])
        found.append(Copied(piece.crc, whole if part.length else []))
        at += part.length
    return found
