"""Byte planes: the first bytes of all numbers, then all second ones, and so on.

The exponents of floating-point numbers then lie together, away from the noise of mantissas,
which is what entropy coding needs.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from gpusnap.errors import UsageError
from gpusnap.native.extension import EXTENSION, Extension

if TYPE_CHECKING:
    from _cffi_backend import FFI
    from typing_extensions import Buffer

_Function: TypeAlias = "Callable[[FFI.CData, int, int, FFI.CData], None]"

_WIDTHS = (2, 4)


def _checked(data: "Buffer", out: "Buffer", width: int) -> tuple[memoryview, memoryview]:
    given, room = memoryview(data).cast("B"), memoryview(out).cast("B")
    if width not in _WIDTHS:
        raise UsageError(f"Numbers of {width} bytes have no planes here, only those of 2 and 4")
    if len(given) != len(room):
        raise UsageError(f"Planes of {len(given)} bytes do not go into {len(room)}")
    return given, room


def _call(
    extension: Extension, function: _Function, views: tuple[memoryview, memoryview], width: int
) -> None:
    ffi = extension.ffi
    with (
        ffi.from_buffer("uint8_t[]", views[0]) as data,
        ffi.from_buffer("uint8_t[]", views[1], require_writable=True) as out,
    ):
        function(data, len(data), width, out)


def _places(length: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Say where the bytes of each plane lie in the numbers, and where in the planes."""
    count, whole = length // width, length // width * width
    for plane in range(width):
        yield slice(plane, whole, width), slice(plane * count, (plane + 1) * count)
    yield slice(whole, length), slice(whole, length)


def split_planes(data: "Buffer", out: "Buffer", width: int) -> None:
    """Take numbers apart.

    Args:
        data: Any C-contiguous buffer. Bytes behind the last whole number stay as they are.
        out: A writable one of the same length, which shares no bytes with ``data``.
        width: Length of a number in bytes: 2 or 4.

    Raises:
        UsageError: Another width, or lengths that differ.
    """
    numbers, planes = views = _checked(data, out, width)
    if EXTENSION is not None:
        _call(EXTENSION, EXTENSION.lib.gpusnap_split_planes, views, width)
        return
    for in_numbers, in_planes in _places(len(numbers), width):
        planes[in_planes] = numbers[in_numbers]


def join_planes(data: "Buffer", out: "Buffer", width: int) -> None:
    """Put numbers together again: the inverse of :func:`split_planes`.

    Args:
        data: What :func:`split_planes` made.
        out: A writable buffer of the same length, which shares no bytes with ``data``.
        width: The width that ``data`` was made with.

    Raises:
        UsageError: Another width, or lengths that differ.
    """
    planes, numbers = views = _checked(data, out, width)
    if EXTENSION is not None:
        _call(EXTENSION, EXTENSION.lib.gpusnap_join_planes, views, width)
        return
    for in_numbers, in_planes in _places(len(numbers), width):
        numbers[in_numbers] = planes[in_planes]
