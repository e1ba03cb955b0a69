"""Saved memories compared: every byte is counted where it belongs."""

import random
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusnap.datapath import Compression, MemoryChange, Saving, compare_memory
from gpusnap.errors import IntegrityError
from gpusnap.native import crc32
from tests.datapath.memories import MIB, Memory
from tests.datapath.targets import silent

PAGE = 4096
BASE = 0x7F00_0000_0000


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Memory:
    return Memory(monkeypatch, tmp_path)


def compared(a: Path | None, b: Path | None, workers: int = 2) -> tuple[MemoryChange, ...]:
    return compare_memory(a, b, workers=workers, progress=silent)


def counts(change: MemoryChange) -> tuple[int, int, int, int]:
    return change.equal, change.changed, change.only_a, change.only_b


def noise(length: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


@pytest.mark.parametrize("compression", Compression)
def test_one_byte_changes_one_page(memory: Memory, compression: Compression) -> None:
    data = bytes(100) + noise(4000) + bytes(MIB) + b"checkpoint" * MIB
    data = data[: 5 * MIB]
    other = bytearray(data)
    other[3 * MIB + 7] ^= 1
    saving = Saving(compression=compression, workers=2, budget=8 * MIB)
    a = memory.save("a", {7: {BASE: data}}, saving)
    b = memory.save("b", {7: {BASE: bytes(other)}})
    [change] = compared(a, b)
    assert (change.pid, change.start, change.length) == (7, BASE, 5 * MIB)
    assert counts(change) == (5 * MIB - PAGE, PAGE, 0, 0)
    [change] = compared(a, a)
    assert counts(change) == (5 * MIB, 0, 0, 0)


def test_zeros_that_come_and_go(memory: Memory) -> None:
    before = noise(PAGE) + bytes(PAGE) + bytes(2 * MIB)
    after = bytes(PAGE) + noise(PAGE) + bytes(2 * MIB)
    a, b = memory.save("a", {7: {BASE: before}}), memory.save("b", {7: {BASE: after}})
    [change] = compared(a, b)
    assert counts(change) == (2 * MIB, 2 * PAGE, 0, 0)


def test_memory_that_grows_moves_and_goes(memory: Memory) -> None:
    far = BASE + (1 << 30)
    data = noise(3 * MIB)
    a = memory.save("a", {7: {BASE: data, far: data}, 8: {BASE: data}})
    grown = {BASE - MIB: noise(MIB, 1) + data + bytes(MIB)}
    b = memory.save("b", {7: grown, 9: {BASE: data}})
    found = {(each.pid, each.start): counts(each) for each in compared(a, b)}
    assert found == {
        (7, BASE - MIB): (3 * MIB, 0, 0, 2 * MIB),
        (7, far): (0, 0, 3 * MIB, 0),
        (8, BASE): (0, 0, 3 * MIB, 0),
        (9, BASE): (0, 0, 0, 3 * MIB),
    }


def test_nothing_saved(memory: Memory) -> None:
    a = memory.save("a", {7: {BASE: noise(MIB)}})
    assert [counts(each) for each in compared(a, None)] == [(0, 0, MIB, 0)]
    assert [counts(each) for each in compared(None, a)] == [(0, 0, 0, MIB)]
    assert compared(None, None) == ()


def test_equal_chunks_are_not_read(memory: Memory) -> None:
    content = {7: {BASE: noise(4 * MIB)}}
    a, b = memory.save("a", content), memory.save("b", content)
    for pack in (*a.glob("*.pack"), *b.glob("*.pack")):
        pack.unlink()
    assert [counts(each) for each in compared(a, b)] == [(4 * MIB, 0, 0, 0)]


def test_identities_decide_where_both_have_one(memory: Memory) -> None:
    """Contents of one CRC-32: nobody takes them for the same who has a better sum of both."""
    data = bytearray(noise(PAGE))
    other = bytearray(noise(PAGE, 1))
    # The CRC-32 of four chosen bytes at the end can be made anything.
    other[-4:] = forged(bytes(other[:-4]), crc32(data))
    assert crc32(data) == crc32(other)
    saving = Saving(incremental=True, workers=1, budget=MIB)
    a = memory.save("a", {7: {BASE: bytes(data)}}, saving)
    b = memory.save("b", {7: {BASE: bytes(other)}}, saving)
    assert [counts(each) for each in compared(a, b)] == [(0, PAGE, 0, 0)]


def forged(data: bytes, wanted: int) -> bytes:
    """Four bytes that, put behind data, lead to a CRC-32."""
    table = [_step(byte) for byte in range(256)]
    state = wanted ^ 0xFFFFFFFF
    for _ in range(4):
        index = next(byte for byte in range(256) if table[byte] >> 24 == state >> 24)
        state = ((state ^ table[index]) << 8 | index) & 0xFFFFFFFF
    return (state ^ crc32(data) ^ 0xFFFFFFFF).to_bytes(4, "little")


def _step(state: int) -> int:
    for _ in range(8):
        state = state >> 1 ^ (0xEDB88320 if state & 1 else 0)
    return state


@pytest.mark.parametrize("workers", [1, 4])
def test_a_damaged_pack_names_file_and_chunk(memory: Memory, workers: int) -> None:
    a = memory.save("a", {7: {BASE: noise(4 * MIB)}})
    b = memory.save("b", {7: {BASE: noise(4 * MIB, 1)}})
    pack = b / "000.pack"
    data = bytearray(pack.read_bytes())
    data[5000] ^= 4
    pack.write_bytes(data)
    with pytest.raises(IntegrityError, match=rf"{pack} is damaged in the chunk at 4096 .*{BASE:x}"):
        compared(a, b, workers)
    pack.write_bytes(data[:4096])
    with pytest.raises(IntegrityError, match=rf"{pack} cannot be read"):
        compared(a, b, workers)
    pack.unlink()
    with pytest.raises(IntegrityError, match=rf"{pack} cannot be read"):
        compared(a, b, workers)


PAGES = st.lists(st.sampled_from([0, 0, 1, 2, 3]), min_size=1, max_size=40)
LAYOUT = st.dictionaries(st.integers(0, 7).map(lambda n: n * 8), PAGES, max_size=4)


def laid_out(layout: Mapping[int, list[int]]) -> dict[int, bytes]:
    """Bytes at addresses; what would overlap is left out."""
    found: dict[int, bytes] = {}
    end = 0
    for page, contents in sorted(layout.items()):
        if page >= end:
            end = page + len(contents)
            pages = (noise(PAGE, content) if content else bytes(PAGE) for content in contents)
            found[BASE + page * PAGE] = b"".join(pages)
    return found


def by_page(content: Mapping[int, bytes]) -> dict[int, bytes]:
    return {
        start + at: data[at : at + PAGE]
        for start, data in content.items()
        for at in range(0, len(data), PAGE)
    }


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LAYOUT, LAYOUT, st.booleans(), st.sampled_from([1, 2, 16]))
def test_as_page_by_page(
    one: dict[int, list[int]], two: dict[int, list[int]], incremental: bool, most_runs: int
) -> None:
    saving = Saving(workers=1, budget=MIB, incremental=incremental)
    before, after = laid_out(one), laid_out(two)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("gpusnap.datapath.pairs._WINDOW", 16 * PAGE)
        monkeypatch.setattr("gpusnap.datapath.source.MOST_RUNS", most_runs)
        memory = Memory(monkeypatch, Path(folder))
        a, b = memory.save("a", {7: before}, saving), memory.save("b", {7: after}, saving)
        found = compared(a, b)
    old, new = by_page(before), by_page(after)
    both = old.keys() & new.keys()
    equal = sum(old[at] == new[at] for at in both)
    expected = (equal, len(both) - equal, len(old.keys() - both), len(new.keys() - both))
    totals = [sum(each) // PAGE for each in zip(*map(counts, found), strict=True)] or [0] * 4
    assert tuple(totals) == expected
    assert all(sum(counts(each)) == each.length for each in found)
