"""The program that is measured, and its memory."""

import array
import zlib

from gpusnap.bench.program import BLOCK, checksum, contents, fill

PAGE = 4096


def test_what_a_block_holds() -> None:
    noise, floats, numbers, zeros = contents()
    assert [len(each) * 16 // BLOCK for each in (noise, floats, numbers, zeros)] == [8, 4, 2, 2]
    assert len(zlib.compress(noise[: 1 << 20], 1)) > 1 << 20
    values = array.array("f", floats)
    assert all(1 / 128 <= abs(value) < 1 / 8 for value in values[:: 1 << 8])
    assert min(values) < 0 < max(values)
    assert max(array.array("q", numbers)) == 255
    assert not any(zeros)


def test_the_content_depends_on_nothing_but_the_size() -> None:
    memory, again = bytearray(2 * BLOCK + PAGE), bytearray(2 * BLOCK + PAGE)
    fill(memoryview(memory))
    fill(memoryview(again))
    assert memory == again
    pages = [bytes(memory[at : at + PAGE]) for at in range(0, len(memory), PAGE)]
    data = [page for page in pages if any(page)]
    assert len(data) == len(set(data))
    assert len(pages) - len(data) == 2 * BLOCK // 8 // PAGE


def test_the_checksum_sees_a_bit_anywhere() -> None:
    memory = bytearray(BLOCK + PAGE)
    fill(memoryview(memory))
    before = checksum(memoryview(memory))
    for at in (0, BLOCK - 1, BLOCK, len(memory) - 1):
        memory[at] ^= 1
        assert checksum(memoryview(memory)) != before
        memory[at] ^= 1
    assert checksum(memoryview(memory)) == before
