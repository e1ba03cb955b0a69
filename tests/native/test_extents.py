"""Chunks put from a file into memory in one call."""

import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.native import Extent, extents, populated_runs, put_extents
from tests.native.mapping import PAGE, Mapping

ME = os.getpid()
PAGES = 600
LENGTH = PAGES * PAGE


@pytest.fixture
def mapping() -> Iterator[Mapping]:
    with Mapping(2 * PAGES) as made:
        yield made


@pytest.fixture
def data() -> bytes:
    """Single pages of zeros, a run of them, and a page with one byte."""
    pages = [random.Random(number).randbytes(PAGE) for number in range(PAGES)]
    for number in (0, 7, *range(250, 260), PAGES - 1):
        pages[number] = bytes(PAGE)
    pages[300] = bytes(PAGE - 1) + b"\x01"
    return b"".join(pages)


@pytest.fixture
def file(tmp_path: Path, data: bytes) -> Iterator[int]:
    path = tmp_path / "pack"
    path.write_bytes(b"header!!" + data + data[::-1])
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def both(mapping: Mapping, data: bytes, pid: int = ME) -> list[Extent]:
    back = data[::-1]
    return [
        Extent(8, LENGTH, mapping.at(0), pid, zlib.crc32(data)),
        Extent(8 + LENGTH, LENGTH, mapping.at(PAGES), pid, zlib.crc32(back)),
    ]


def test_all_is_put_and_zeros_stay_holes(file: int, mapping: Mapping, data: bytes) -> None:
    assert put_extents(file, both(mapping, data), bytearray(LENGTH)) == 2
    populated = sum(length for _, length in populated_runs(ME, mapping.address, LENGTH))
    assert populated == LENGTH - 13 * PAGE
    assert mapping.read(0, 2 * LENGTH) == data + data[::-1]


def test_only_checked(file: int, mapping: Mapping, data: bytes) -> None:
    assert put_extents(file, both(mapping, data, pid=0), bytearray(LENGTH)) == 2
    assert not populated_runs(ME, mapping.address, 2 * LENGTH)


@pytest.mark.parametrize("number", [0, 1])
def test_nothing_is_written_of_what_does_not_match(
    file: int, mapping: Mapping, data: bytes, number: int
) -> None:
    wanted = both(mapping, data)
    wanted[number] = wanted[number]._replace(crc=wanted[number].crc ^ 1)
    assert put_extents(file, wanted, bytearray(LENGTH)) == number
    assert not populated_runs(ME, mapping.at(number * PAGES), LENGTH)


def test_a_file_that_is_too_short(file: int, mapping: Mapping, data: bytes) -> None:
    first, second = both(mapping, data)
    beyond = second._replace(position=second.position + 1)
    assert put_extents(file, [first, beyond], bytearray(LENGTH)) == 1


def test_memory_that_takes_nothing(file: int, mapping: Mapping, data: bytes) -> None:
    mapping.protect(PAGES + 100, PAGES + 101, 1)
    assert put_extents(file, both(mapping, data), bytearray(LENGTH)) == 1


def test_a_buffer_that_is_too_small(file: int, mapping: Mapping, data: bytes) -> None:
    with pytest.raises(ValueError, match="too small"):
        put_extents(file, both(mapping, data), bytearray(LENGTH - 1))


def test_none(file: int) -> None:
    assert put_extents(file, [], bytearray()) == 0


def test_without_the_extension(
    file: int, mapping: Mapping, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "EXTENSION", None)
    assert put_extents(file, both(mapping, data), bytearray(LENGTH)) == 0
