import array
import mmap
import random
import struct
import subprocess
import sys
import threading
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap import native
from gpusnap.errors import UsageError
from gpusnap.native import PieceTable, checksum

IMPLEMENTATIONS = native.implementations()
MASK = 0xFFFFFFFF

each = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
words = st.integers(min_value=0, max_value=MASK)


def test_the_extension_is_built_here() -> None:
    assert "portable" in IMPLEMENTATIONS
    assert IMPLEMENTATIONS[-1] == "zlib"


@each
def test_every_small_size_at_every_alignment(implementation: str) -> None:
    data = memoryview(random.Random(1).randbytes(700))
    for offset in range(17):
        for size in range(len(data) - offset):
            piece = data[offset : offset + size]
            expected = zlib.crc32(piece)
            assert native.crc32(piece, implementation=implementation) == expected, (offset, size)


@each
@pytest.mark.parametrize("size", [4096, 12288, 12289, 65535, 1 << 20, (1 << 20) + 77])
def test_large_sizes(implementation: str, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert native.crc32(data, implementation=implementation) == zlib.crc32(data)


@each
@given(data=st.binary(max_size=2000), cut=st.integers(min_value=0, max_value=2000), start=words)
def test_pieces_give_what_the_whole_gives(
    implementation: str, data: bytes, cut: int, start: int
) -> None:
    value = native.crc32(data[:cut], start, implementation=implementation)
    value = native.crc32(data[cut:], value, implementation=implementation)
    assert value == zlib.crc32(data, start)


@each
def test_one_bit_changes_the_result(implementation: str) -> None:
    data = bytearray(random.Random(2).randbytes(600))
    clean = native.crc32(data, implementation=implementation)
    for position in range(len(data)):
        data[position] ^= 0x10
        assert native.crc32(data, implementation=implementation) != clean, position
        data[position] ^= 0x10


@given(first=st.binary(max_size=600), second=st.binary(max_size=600))
def test_combine(first: bytes, second: bytes) -> None:
    combined = native.crc32_combine(zlib.crc32(first), zlib.crc32(second), len(second))
    assert combined == zlib.crc32(first + second)


@given(values=st.tuples(words, words, words), lengths=st.tuples(*[st.integers(0, 2**62)] * 2))
def test_combining_lengths_beyond_memory(
    values: tuple[int, int, int], lengths: tuple[int, int]
) -> None:
    a, b, c = values
    left = native.crc32_combine(native.crc32_combine(a, b, lengths[0]), c, lengths[1])
    right = native.crc32_combine(a, native.crc32_combine(b, c, lengths[1]), sum(lengths))
    assert left == right


@given(first=words, second=words, length=st.integers(0, 2**63))
def test_combine_agrees_with_its_fallback(first: int, second: int, length: int) -> None:
    expected = checksum._combine(first, second, length)
    assert native.crc32_combine(first, second, length) == expected


TABLE = PieceTable(stride=14, crc_at=6, length_at=1, unit=8)


def table_of(pieces: list[bytes]) -> bytes:
    """Between what stands for each piece are other bytes."""
    records = (
        struct.pack("<BIBII", 7, len(each), 9, zlib.crc32(padded(each)), 5) for each in pieces
    )
    return b"".join(records)


def padded(piece: bytes) -> bytes:
    return piece + bytes(-len(piece) % TABLE.unit)


@pytest.mark.parametrize("compiled", [True, False])
@given(first=st.binary(max_size=20), pieces=st.lists(st.binary(max_size=30), max_size=5))
def test_a_table_of_pieces(*, compiled: bool, first: bytes, pieces: list[bytes]) -> None:
    whole = first + b"".join(map(padded, pieces))
    with pytest.MonkeyPatch.context() as monkeypatch:
        if not compiled:
            monkeypatch.setattr(checksum, "EXTENSION", None)
        found = native.crc32_chain(zlib.crc32(first), table_of(pieces), TABLE)
    assert found == zlib.crc32(whole)


def test_a_table_that_ends_within_a_piece() -> None:
    with pytest.raises(UsageError, match="A table of 27 bytes has no pieces of 14"):
        native.crc32_chain(0, table_of([b"a", b"b"])[:-1], TABLE)


def test_a_start_value_is_taken_modulo_32_bits() -> None:
    for start in (-1, 1 << 40 | 5):
        assert native.crc32(b"gpusnap", start) == zlib.crc32(b"gpusnap", start)


@each
def test_any_contiguous_buffer(implementation: str) -> None:
    numbers = array.array("d", [1.5, -2.25, 1e300])
    with mmap.mmap(-1, 8192) as mapping:
        mapping[100:103] = b"abc"
        for buffer in (bytearray(b"abc"), memoryview(b"abcdef")[2:], numbers, mapping):
            assert native.crc32(buffer, implementation=implementation) == zlib.crc32(buffer)


@each
def test_a_buffer_with_gaps_is_refused(implementation: str) -> None:
    with pytest.raises(BufferError):
        native.crc32(memoryview(b"abcdef")[::2], implementation=implementation)


@each
def test_the_buffer_is_let_go(implementation: str) -> None:
    buffer = bytearray(b"abc")
    native.crc32(buffer, implementation=implementation)
    buffer.append(1)  # raises BufferError while a view of it is held


@each
def test_text_is_refused(implementation: str) -> None:
    with pytest.raises(TypeError):
        native.crc32("text", implementation=implementation)  # type: ignore[arg-type]


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(UsageError, match=r"No CRC-32 implementation 'magic' here, only .*zlib"):
        native.crc32(b"", implementation="magic")


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be negative: -1"):
        native.crc32_combine(0, 0, -1)


def test_other_threads_run_meanwhile() -> None:
    data = bytearray(256 << 20)
    # A machine with much else to do may give this thread no time meanwhile.
    assert any(runs_beside_a_checksum(data) for _ in range(5))


def runs_beside_a_checksum(data: bytearray) -> bool:
    """Whether this thread was woken in the middle of a checksum that another one computes."""
    span: list[float] = []

    def compute() -> None:
        span.append(time.perf_counter())
        native.crc32(data, implementation="portable")
        span.append(time.perf_counter())

    thread = threading.Thread(target=compute)
    ticks = []
    thread.start()
    while thread.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    margin = (span[1] - span[0]) / 4
    return any(span[0] + margin < tick < span[1] - margin for tick in ticks)


def test_without_the_extension() -> None:
    program = """
import sys, zlib
sys.modules["gpusnap._native"] = None
from gpusnap import native
assert native.implementations() == ("zlib",)
assert native.crc32(b"abc", 7) == zlib.crc32(b"abc", 7)
assert native.crc32_combine(zlib.crc32(b"abc"), zlib.crc32(b"defg"), 4) == zlib.crc32(b"abcdefg")
assert native.nonzero_pages(bytes(4096) + b"1") == [(4096, 1)]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
