"""CRC-32 at the speed of memory.

Polynomial, conventions and results are zlib's: ``zlib.crc32`` itself is one of the
implementations, the one that is left on a platform for which the extension was not built.
"""

import functools
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gpusnap.errors import UsageError
from gpusnap.native.extension import EXTENSION, Extension

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Crc32: TypeAlias = "Callable[[Buffer, int], int]"

_MASK = 0xFFFFFFFF
_WORD = struct.Struct("<I")
_POLYNOMIAL = 0xEDB88320
_X_TO_THE_8 = 0x00800000


def _multiply(a: int, b: int) -> int:
    """Multiply two polynomials modulo the CRC's; bit 31 stands for x^0."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _combine(first: int, second: int, second_length: int) -> int:
    """Do what the extension's function does where there is none."""
    power = _X_TO_THE_8
    while second_length:
        if second_length & 1:
            first = _multiply(first, power)
        power = _multiply(power, power)
        second_length >>= 1
    return first ^ second


def _numbers(extension: Extension) -> dict[str, int]:
    """Give the extension's number of each way that this processor has, the fastest first."""
    lib = extension.lib
    numbers = {
        "vpclmul": lib.GPUSNAP_CRC32_VPCLMUL,
        "vpclmul_avx": lib.GPUSNAP_CRC32_VPCLMUL_AVX,
        "pclmul": lib.GPUSNAP_CRC32_PCLMUL,
        "arm": lib.GPUSNAP_CRC32_ARM,
        "portable": lib.GPUSNAP_CRC32_PORTABLE,
    }
    return {name: number for name, number in numbers.items() if lib.gpusnap_crc32_supported(number)}


def _compute(extension: Extension, number: int, data: "Buffer", value: int) -> int:
    with extension.ffi.from_buffer("uint8_t[]", data) as view:
        return extension.lib.gpusnap_crc32(number, value, view, len(view))


def _implementations() -> dict[str, _Crc32]:
    """Give what this machine can run, the fastest first."""
    if EXTENSION is None:
        return {"zlib": zlib.crc32}
    compiled: dict[str, _Crc32] = {
        name: functools.partial(_compute, EXTENSION, number)
        for name, number in _numbers(EXTENSION).items()
    }
    return compiled | {"zlib": zlib.crc32}


FASTEST_NUMBER = next(iter(_numbers(EXTENSION).values())) if EXTENSION else 0
"""What the extension's functions that compute CRC-32 on the way are told to use."""

_IMPLEMENTATIONS = _implementations()
_FASTEST = next(iter(_IMPLEMENTATIONS))


def implementations() -> tuple[str, ...]:
    """Name the ways to compute CRC-32 on this machine, the fastest first.

    Returns:
        Some of ``vpclmul`` (VPCLMULQDQ with AVX-512), ``vpclmul_avx`` (VPCLMULQDQ with AVX2),
        ``pclmul`` (PCLMULQDQ), ``arm`` (Armv8's CRC32 instructions) and ``portable`` (tables, in
        C); always ``zlib``.
    """
    return tuple(_IMPLEMENTATIONS)


def crc32(data: "Buffer", value: int = 0, *, implementation: str | None = None) -> int:
    """Compute the CRC-32 of ``data``, as ``zlib.crc32`` does.

    Args:
        data: Any C-contiguous buffer; it is read where it lies.
        value: CRC-32 of what came before, 0 at the start.
        implementation: One of :func:`implementations`, the fastest when None.

    Returns:
        A number of 32 bits.

    Raises:
        UsageError: This machine does not have the implementation.
    """
    compute = _IMPLEMENTATIONS.get(implementation or _FASTEST)
    if compute is None:
        names = ", ".join(_IMPLEMENTATIONS)
        raise UsageError(f"No CRC-32 implementation {implementation!r} here, only {names}")
    return compute(data, value & _MASK)


def crc32_combine(first: int, second: int, second_length: int) -> int:
    """Compute the CRC-32 of two pieces put together, without reading them.

    Args:
        first: CRC-32 of the first piece.
        second: CRC-32 of the second piece.
        second_length: Length of the second piece in bytes.

    Raises:
        UsageError: The length is negative.
    """
    if second_length < 0:
        raise UsageError(f"A length cannot be negative: {second_length}")
    combine = EXTENSION.lib.gpusnap_crc32_combine if EXTENSION else _combine
    return combine(first & _MASK, second & _MASK, second_length)


class PieceTable(NamedTuple):
    """How a table tells of pieces that follow each other.

    Attributes:
        stride: Bytes from one piece to the next.
        crc_at: Where in them its CRC-32 stands, 32 bits, little-endian.
        length_at: Where its length in bytes stands, likewise.
        unit: Each piece takes a multiple of so many bytes, its length rounded up.
    """

    stride: int
    crc_at: int
    length_at: int
    unit: int


def crc32_chain(first: int, pieces: bytes, table: PieceTable) -> int:
    """Compute the CRC-32 of pieces put together, without reading them: of very many in one call.

    Args:
        first: CRC-32 of what stands in front of them.
        pieces: The table.
        table: How it tells of them.

    Raises:
        UsageError: The table does not end with a piece.
    """
    count, rest = divmod(len(pieces), table.stride)
    if rest:
        raise UsageError(f"A table of {len(pieces)} bytes has no pieces of {table.stride}")
    if EXTENSION is None:
        return _chain(first & _MASK, pieces, table)
    lib, ffi = EXTENSION
    layout = ffi.new("struct gpusnap_crc32_table *", tuple(table))
    with ffi.from_buffer("uint8_t[]", pieces) as view:
        return lib.gpusnap_crc32_chain(first & _MASK, view, count, layout)


def _chain(first: int, pieces: bytes, table: PieceTable) -> int:
    for begin in range(0, len(pieces), table.stride):
        (crc,) = _WORD.unpack_from(pieces, begin + table.crc_at)
        (length,) = _WORD.unpack_from(pieces, begin + table.length_at)
        first = _combine(first, crc, -(-length // table.unit) * table.unit)
    return first
