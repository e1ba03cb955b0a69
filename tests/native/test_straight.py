"""Copies out of a process straight into a file."""

import errno
import os
import random
import resource
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpusnap.native import Outlet, Sent, Stored, copy_straight, straight
from tests.native.mapping import PAGE, Mapping

ME = os.getpid()
PAGES = 40
STEP = 5 * PAGE
MOST_RUNS = 16


@pytest.fixture
def mapping() -> Iterator[Mapping]:
    """Page 31 is zeros."""
    with Mapping(PAGES) as made:
        made.write(0, random.Random(1).randbytes(PAGES * PAGE))
        made.write(31 * PAGE, bytes(PAGE))
        yield made


def copy(
    mapping: Mapping, file: Path, runs: Sequence[tuple[int, int]], *, base: int = 0, step: int = 5
) -> Sent:
    """Copy runs of pages, counted from a page, behind three bytes of a file."""
    asked = [(first * PAGE, count * PAGE) for first, count in runs]
    with file.open("wb", buffering=0) as stream:
        stream.write(bytes(3))
        outlet = Outlet(stream.fileno(), 3)
        return copy_straight(ME, mapping.at(base), asked, bytearray(step * PAGE), outlet)


def expected(mapping: Mapping, pages: Sequence[tuple[int, int]], base: int = 0) -> list[Stored]:
    """Runs of pages as they are to be told of."""
    return [
        Stored(first * PAGE, count * PAGE, zlib.crc32(content(mapping, first + base, count)))
        for first, count in pages
    ]


def content(mapping: Mapping, first: int, count: int) -> bytes:
    return mapping.read(first * PAGE, count * PAGE)


def check(
    sent: Sent,
    file: Path,
    mapping: Mapping,
    length: int,
    pages: Sequence[tuple[int, int]],
    base: int = 0,
) -> None:
    assert sent == Sent(length * PAGE, expected(mapping, pages, base))
    held = b"".join(content(mapping, first + base, count) for first, count in pages)
    assert file.read_bytes() == bytes(3) + held


def test_all_is_in_the_file_piece_by_piece(mapping: Mapping, tmp_path: Path) -> None:
    sent = copy(mapping, tmp_path / "file", [(2, 9), (13, 1), (15, 5)], base=3)
    pieces = [(2, 3), (5, 5), (10, 1), (13, 1), (15, 5)]
    check(sent, tmp_path / "file", mapping, 15, pieces, base=3)


def test_pages_of_zeros_are_left_out(mapping: Mapping, tmp_path: Path) -> None:
    for page in (2, 20, 21, 22, 23, 24, 39):
        mapping.write(page * PAGE, bytes(PAGE))
    sent = copy(mapping, tmp_path / "file", [(0, 40)])
    pieces = [(0, 2), (3, 2), (5, 5), (10, 5), (15, 5), (25, 5), (30, 1), (32, 3), (35, 4)]
    check(sent, tmp_path / "file", mapping, 40, pieces)


def test_of_very_many_holes_the_widest_are_left(tmp_path: Path) -> None:
    """Of those of the same width the last ones."""
    pages = [page for page in range(PAGES) if page % 2 == 0 and page not in {10, 20}]
    with Mapping(PAGES) as made:
        for page in pages:
            made.write(page * PAGE, random.Random(page).randbytes(PAGE))
        sent = copy(made, tmp_path / "file", [(0, PAGES)], step=PAGES)
        # 18 runs have 17 holes
        left = [(0, 5), (6, 1), (8, 1), (12, 1), (14, 1), (16, 1), (18, 1)]
        left += [(page, 1) for page in pages if page > 20]
        assert len(left) == MOST_RUNS
        check(sent, tmp_path / "file", made, PAGES, left)


def test_very_many_runs(tmp_path: Path) -> None:
    """More than there is room for in one write."""
    pages = 700
    with Mapping(2 * pages) as made:
        for page in range(0, 2 * pages, 2):
            made.write(page * PAGE, random.Random(page).randbytes(PAGE))
        runs = [(page, 1) for page in range(0, 2 * pages, 2)]
        sent = copy(made, tmp_path / "file", runs, step=64)
        check(sent, tmp_path / "file", made, pages, runs)
        halves = [(page, 4) for page in range(0, 2 * pages, 4)]
        sent = copy(made, tmp_path / "file", halves, step=4)
        check(sent, tmp_path / "file", made, 2 * pages, runs)


def test_only_zeros(tmp_path: Path) -> None:
    with Mapping(PAGES) as made:
        check(copy(made, tmp_path / "file", [(0, PAGES)]), tmp_path / "file", made, PAGES, [])


def test_what_the_kernel_refuses_ends_it(mapping: Mapping, tmp_path: Path) -> None:
    mapping.protect(7, 8, 0)
    sent = copy(mapping, tmp_path / "file", [(0, 30)])
    check(sent, tmp_path / "file", mapping, 5, [(0, 5)])
    assert copy(mapping, tmp_path / "file", [(7, 23)]) == Sent(0, [])
    # Also behind what is in the buffer and not in the file yet
    sent = copy(mapping, tmp_path / "file", [(0, 1), (3, 1), (6, 2)], step=8)
    check(sent, tmp_path / "file", mapping, 2, [(0, 1), (3, 1)])


@pytest.fixture
def longest_file() -> Iterator[int]:
    """No file of this process gets longer."""
    limit = 3 + 7 * PAGE // 2
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_may_be_no_longer(mapping: Mapping, tmp_path: Path, longest_file: int) -> None:
    with pytest.raises(OSError, match="File too large"):
        copy(mapping, tmp_path / "file", [(0, 1), (2, 1), (4, 6)], step=8)
    held = content(mapping, 0, 1) + content(mapping, 2, 1) + content(mapping, 4, 2)
    assert (tmp_path / "file").read_bytes() == (bytes(3) + held)[:longest_file]


def test_a_file_that_is_full(mapping: Mapping) -> None:
    with Path("/dev/full").open("wb") as full:
        asked = (ME, mapping.at(0), [(0, PAGE)], bytearray(STEP), Outlet(full.fileno(), 0))
        with pytest.raises(OSError, match="No space") as caught:
            copy_straight(*asked)
    assert caught.value.errno == errno.ENOSPC


def test_nothing(mapping: Mapping, tmp_path: Path) -> None:
    for runs in ([], [(3, 0)]):
        assert copy(mapping, tmp_path / "file", runs) == Sent()


@pytest.mark.parametrize("step", [0, 257])
def test_a_buffer_that_does_not_suit(mapping: Mapping, tmp_path: Path, step: int) -> None:
    with pytest.raises(ValueError, match=f"A buffer of {step * PAGE} bytes"):
        copy(mapping, tmp_path / "file", [(0, 30)], step=step)


def test_a_buffer_of_parts_of_pages(mapping: Mapping) -> None:
    with pytest.raises(ValueError, match="A buffer of 4097 bytes"):
        copy_straight(ME, mapping.at(0), [(0, PAGE)], bytearray(PAGE + 1), Outlet(1, 0))


def test_without_the_extension_none_is_copied(
    mapping: Mapping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(straight, "EXTENSION", None)
    assert copy(mapping, tmp_path / "file", [(0, 30)]) == Sent()
    assert (tmp_path / "file").read_bytes() == bytes(3)
