"""Which pages of a buffer hold anything."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from gpusnap.errors import UsageError
from gpusnap.native.extension import EXTENSION, Extension

if TYPE_CHECKING:
    from typing_extensions import Buffer


def runs(items: Iterable[bool], size: int, end: int) -> Iterator[tuple[int, int]]:
    """Give the (offset, length) of each run of true items, each ``size`` long up to ``end``."""
    for true, run in groupby(enumerate(items), key=itemgetter(1)):
        if true:
            numbers = [number for number, _ in run]
            yield numbers[0] * size, min(end, (numbers[-1] + 1) * size) - numbers[0] * size


def _in_python(data: "Buffer", page: int) -> list[tuple[int, int]]:
    view = memoryview(data).cast("B")
    zero = bytes(page)
    pages = (view[start : start + page] for start in range(0, len(view), page))
    return list(runs((piece != zero[: len(piece)] for piece in pages), page, len(view)))


def _in_c(extension: Extension, data: "Buffer", page: int) -> list[tuple[int, int]]:
    lib, ffi = extension
    with ffi.from_buffer("uint8_t[]", data) as view:
        room = len(view) // page // 2 + 1
        found = ffi.new("struct gpusnap_run[]", room)
        count = lib.gpusnap_nonzero_pages(view, len(view), page, found, room)
    return [(run.offset, run.length) for run in found[0:count]]


def nonzero_pages(data: "Buffer", page: int = 4096) -> list[tuple[int, int]]:
    """Find the pages that are not all zero.

    Args:
        data: Any C-contiguous buffer; a last page may be shorter than the others.
        page: Length of a page in bytes.

    Returns:
        Runs of such pages as (offset, length) in bytes, ascending, none next to another.

    Raises:
        UsageError: A page is to have no bytes.
    """
    if page < 1:
        raise UsageError(f"A page of {page} bytes cannot be")
    return _in_c(EXTENSION, data, page) if EXTENSION else _in_python(data, page)
