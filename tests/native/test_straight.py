"""Copies out of a process straight into a file."""

import errno
import os
import random
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpusnap.native import Copied, Outlet, Part, Sent, copy_straight, straight
from tests.native.mapping import PAGE, Mapping

ME = os.getpid()
PAGES = 40
STEP = 5 * PAGE


@pytest.fixture
def mapping() -> Iterator[Mapping]:
    """Page 31 is zeros."""
    with Mapping(PAGES) as made:
        made.write(0, random.Random(1).randbytes(PAGES * PAGE))
        made.write(31 * PAGE, bytes(PAGE))
        yield made


def copy(mapping: Mapping, file: Path, first: int, end: int, head: int = STEP) -> list[int]:
    """Copy pages behind three bytes of a file, the first so many bytes as a piece of their own."""
    sent, _ = copy_and_rest(mapping, file, first, end, head)
    assert sent.rest is None
    return sent.crcs


def copy_and_rest(
    mapping: Mapping, file: Path, first: int, end: int, head: int = STEP
) -> tuple[Sent, bytes]:
    part = Part(ME, mapping.at(first), (end - first) * PAGE)
    buffer = bytearray(STEP)
    with file.open("wb") as stream:
        sent = copy_straight(part, head, buffer, Outlet(stream.fileno(), 3))
    return sent, bytes(buffer)


@pytest.mark.parametrize("head", [1, 4, 5])
@pytest.mark.parametrize("end", [3, 8, 15, 30])
def test_all_is_in_the_file_piece_by_piece(
    mapping: Mapping, tmp_path: Path, end: int, head: int
) -> None:
    crcs = copy(mapping, tmp_path / "file", 2, end, head * PAGE)
    content = mapping.read(2 * PAGE, (end - 2) * PAGE)
    assert (tmp_path / "file").read_bytes() == bytes(3) + content
    bounds = [0, *range(head * PAGE, len(content), STEP), len(content)]
    pieces = [content[begin:stop] for begin, stop in pairwise(bounds)]
    assert crcs == list(map(zlib.crc32, pieces))


def test_a_page_of_zeros_ends_it(mapping: Mapping, tmp_path: Path) -> None:
    sent, buffer = copy_and_rest(mapping, tmp_path / "file", 20, PAGES)
    content = mapping.read(20 * PAGE, 15 * PAGE)
    pieces = [content[at : at + STEP] for at in range(0, len(content), STEP)]
    assert (tmp_path / "file").read_bytes() == bytes(3) + pieces[0] + pieces[1]
    assert sent.crcs == [zlib.crc32(pieces[0]), zlib.crc32(pieces[1])]
    assert buffer == pieces[2]
    assert sent.rest == Copied(zlib.crc32(pieces[2]), [(0, PAGE), (2 * PAGE, 3 * PAGE)])


def test_what_the_kernel_refuses_ends_it(mapping: Mapping, tmp_path: Path) -> None:
    mapping.protect(7, 8, 0)
    assert len(copy(mapping, tmp_path / "file", 0, 30)) == 1
    assert (tmp_path / "file").stat().st_size == 3 + STEP
    assert copy(mapping, tmp_path / "file", 7, 30) == []


def test_a_file_that_is_full(mapping: Mapping) -> None:
    with pytest.raises(OSError, match="No space") as caught:
        copy(mapping, Path("/dev/full"), 0, 30)
    assert caught.value.errno == errno.ENOSPC


def test_nothing(mapping: Mapping, tmp_path: Path) -> None:
    assert copy(mapping, tmp_path / "file", 3, 3) == []


def test_a_piece_longer_than_the_buffer(mapping: Mapping, tmp_path: Path) -> None:
    for head in (0, STEP + 1):
        with pytest.raises(ValueError, match="too small"):
            copy(mapping, tmp_path / "file", 0, 30, head)


def test_without_the_extension_none_is_copied(
    mapping: Mapping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(straight, "EXTENSION", None)
    assert copy(mapping, tmp_path / "file", 0, 30) == []
    assert (tmp_path / "file").read_bytes() == b""
