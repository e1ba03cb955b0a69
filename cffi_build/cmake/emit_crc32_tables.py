"""Write the constants of CRC-32 that follow from its polynomial, as a C header.

They are computed rather than listed, so that a reader can check the rule instead of 4,000
numbers, and at build time rather than on loading, so that the C code holds no state.

All polynomials are bit-reflected, as zlib's CRC-32 is: bit 31 of a word stands for x^0.

Usage: emit_crc32_tables.py OUTPUT
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

POLYNOMIAL = 0xEDB88320
ONE = 0x80000000
SLICES = 16
COLUMNS = 6
FOLD_DISTANCES = (2048, 512, 256, 128)
"""Bits by which the carry-less multiplying paths shift a remainder onto later data."""


def times_x(remainder: int) -> int:
    """Multiply a polynomial by x, modulo the CRC's polynomial."""
    return (remainder >> 1) ^ (POLYNOMIAL if remainder & 1 else 0)


def power_of_x(exponent: int) -> int:
    """Reduce x^exponent modulo the CRC's polynomial."""
    remainder = ONE
    for _ in range(exponent):
        remainder = times_x(remainder)
    return remainder


def byte_table() -> list[int]:
    """For each byte, the remainder after it has passed through the register."""
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = times_x(remainder)
        table.append(remainder)
    return table


def sliced_tables() -> Iterator[list[int]]:
    """Tables in which entry ``b`` of table ``k`` is byte ``b`` followed by ``k`` zero bytes."""
    first = table = byte_table()
    for _ in range(SLICES):
        yield table
        table = [(value >> 8) ^ first[value & 0xFF] for value in table]


def fold_constants(bits: int) -> tuple[int, int]:
    """Multipliers that move the low and the high 64 bits of a remainder by ``bits``.

    A product of reflected 64-bit words comes out shifted by one bit, which the left shift
    here makes up for (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
    PCLMULQDQ Instruction", Intel 2009).
    """
    return power_of_x(bits + 32) << 1, power_of_x(bits - 32) << 1


def square(value: int) -> int:
    """Multiply a polynomial by itself, modulo the CRC's polynomial."""
    result, term = 0, value
    for bit in range(31, -1, -1):
        if value >> bit & 1:
            result ^= term
        term = times_x(term)
    return result


def doubling_powers() -> Iterator[int]:
    """x^8, x^16, x^32 and so on: the shift by 1, 2, 4 bytes up to 2^63 bytes."""
    power = power_of_x(8)
    for _ in range(64):
        yield power
        power = square(power)


def words(values: Iterable[int]) -> str:
    """Lay 32-bit numbers out in lines of C."""
    texts = [f"0x{value:08x}u," for value in values]
    lines = [" ".join(texts[i : i + COLUMNS]) for i in range(0, len(texts), COLUMNS)]
    return "\n        ".join(lines)


def header() -> Iterator[str]:
    """Give the header's pieces."""
    yield "/* Written by emit_crc32_tables.py: change the rule there. */"
    yield "#include <stdint.h>"
    yield f"#define CRC32_POLYNOMIAL 0x{POLYNOMIAL:08x}u"
    yield f"static const uint32_t crc32_slices[{SLICES}][256] = {{"
    for table in sliced_tables():
        yield f"    {{\n        {words(table)}\n    }},"
    yield "};"
    yield "static const uint32_t crc32_doubling_powers[64] = {"
    yield f"        {words(doubling_powers())}"
    yield "};"
    for bits in FOLD_DISTANCES:
        low, high = fold_constants(bits)
        yield f"#define CRC32_FOLD_{bits}_LOW 0x{low:016x}"
        yield f"#define CRC32_FOLD_{bits}_HIGH 0x{high:016x}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(header()) + "\n", encoding="utf-8")
