"""Many copies in one call."""

import os
import random
import zlib
from collections.abc import Iterator, Sequence

import pytest

from gpusnap.native import Copied, MemoryFault, Part, memory, pieces, read_parts
from tests.native.mapping import PAGE, Mapping

ME = os.getpid()
PAGES = 40


@pytest.fixture(params=["extension", "python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(memory, "EXTENSION", None)
        monkeypatch.setattr(pieces, "EXTENSION", None)
    return str(request.param)


@pytest.fixture
def mapping() -> Iterator[Mapping]:
    """Pages 10 to 12 and the last one are zeros."""
    with Mapping(PAGES) as made:
        made.write(0, random.Random(1).randbytes(PAGES * PAGE))
        for page in (10, 11, 12, PAGES - 1):
            made.write(page * PAGE, bytes(PAGE))
        yield made


def parts(mapping: Mapping, *pages: tuple[int, int]) -> list[Part]:
    return [Part(ME, mapping.at(first), (end - first) * PAGE) for first, end in pages]


def test_what_was_read(mapping: Mapping) -> None:
    wanted = parts(mapping, (30, PAGES), (0, 10), (5, 15), (10, 13))
    buffer = bytearray(sum(part.length for part in wanted) + 5)
    found = read_parts(wanted, buffer)
    expected = [mapping.read(part.address - mapping.address, part.length) for part in wanted]
    assert buffer == b"".join(expected) + bytes(5)
    assert [each.crc for each in found] == list(map(zlib.crc32, expected))
    assert [each.runs for each in found] == [
        [(0, 9 * PAGE)],
        [(0, 10 * PAGE)],
        [(0, 5 * PAGE), (8 * PAGE, 2 * PAGE)],
        [],
    ]


def test_what_is_refused_goes_another_way(mapping: Mapping) -> None:
    before = mapping.read(0, PAGES * PAGE)
    wanted = parts(mapping, (0, 5), (5, 10), (13, 20), (20, 25), (25, 30))
    for page in (7, 22):
        mapping.protect(page, page + 1, 0)
    buffer = bytearray(27 * PAGE)
    found = read_parts(wanted, buffer)
    assert buffer == before[: 10 * PAGE] + before[13 * PAGE : 30 * PAGE]
    assert [each.runs for each in found] == [[(0, part.length)] for part in wanted]


def test_very_much_that_is_refused_is_handed_to_c_once(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In very many small parts of memory without access each further call would cost the more."""
    asked = []

    def in_c(parts: Sequence[Part], _view: memoryview) -> list[Copied]:
        asked.append(len(parts))
        return []

    monkeypatch.setattr(pieces, "_in_c", in_c)
    before = mapping.read(0, PAGES * PAGE)
    mapping.protect(0, PAGES, 0)
    buffer = bytearray(PAGES // 2 * PAGE)
    read_parts(parts(mapping, *((page, page + 1) for page in range(0, PAGES, 2))), buffer)
    mapping.protect(0, PAGES, 1)
    pages = (before[page * PAGE : (page + 1) * PAGE] for page in range(0, PAGES, 2))
    assert buffer == b"".join(pages)
    assert asked == [PAGES // 2]


def test_memory_that_is_not_there(mapping: Mapping) -> None:
    wanted = parts(mapping, (0, 5), (5, 10))
    mapping.unmap(8, 9)
    with pytest.raises(MemoryFault, match=f"{mapping.at(8):#x}"):
        read_parts(wanted, bytearray(10 * PAGE))


def test_none() -> None:
    assert read_parts([], bytearray()) == list[Copied]()
