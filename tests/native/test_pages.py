"""Pages that hold anything: of a buffer, of a process."""

import errno
import fcntl
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap import native
from gpusnap.errors import UsageError
from gpusnap.native import pagemap, pages
from tests.native.mapping import PAGE, Mapping

Runs = list[tuple[int, int]]

ME = os.getpid()
PAGEMAP = Path("/proc/self/pagemap")
PAGES = 1300  # more than one request of the kernel answers when every other one is held


def expected_runs(filled: list[bool], page: int, length: int) -> Runs:
    found: Runs = []
    for number, full in enumerate(filled):
        start, end = number * page, min(length, (number + 1) * page)
        if full and found and sum(found[-1]) == start:
            found[-1] = (found[-1][0], end - found[-1][0])
        elif full:
            found.append((start, end - start))
    return found


def in_python(data: bytes, page: int) -> Runs:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "EXTENSION", None)
        return native.nonzero_pages(data, page)


@given(
    filled=st.lists(st.booleans(), max_size=20),
    page=st.integers(1, 700),
    cut=st.integers(0, 699),
    seed=st.integers(0, 1000),
)
def test_nonzero_pages(filled: list[bool], page: int, cut: int, seed: int) -> None:
    """One byte is enough, wherever it is in its page."""
    length = max(0, len(filled) * page - cut % page)
    data = bytearray(length)
    for number, full in enumerate(filled):
        if full:
            data[random.Random(seed).randrange(number * page, min(length, (number + 1) * page))] = 1
    expected = expected_runs(filled, page, length)
    assert native.nonzero_pages(data, page) == expected
    assert in_python(bytes(data), page) == expected


def test_every_byte_of_a_page_is_looked_at() -> None:
    for position in range(4096):
        data = bytearray(3 * 4096)
        data[4096 + position] = 0x80
        assert native.nonzero_pages(data) == [(4096, 4096)], position


def test_pages_of_nothing() -> None:
    assert native.nonzero_pages(b"") == in_python(b"", 4096) == []
    with pytest.raises(UsageError, match="A page of 0 bytes"):
        native.nonzero_pages(b"1", 0)


def gives_ranges() -> bool:
    """Whether the kernel is one of 6.7 or later."""
    with PAGEMAP.open("rb") as file:
        try:
            return list(pagemap._scan(file.fileno(), 0, PAGE, pagemap._PFNZERO)) == []
        except OSError:
            return False


def tells_guards(mapping: Mapping, page: int) -> bool:
    """Whether the kernel is one of 6.15 or later."""
    with PAGEMAP.open("rb") as file:
        return pagemap.is_guard(file.fileno(), mapping.at(page))


@pytest.fixture(params=["ranges", "no-guard", "words", "words-in-python"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel of today, one before 6.15, and one before 6.7, without the extension too."""
    if request.param in {"ranges", "no-guard"} and not gives_ranges():
        pytest.skip("This kernel gives no ranges of pages")
    refused = {"no-guard": pagemap._PFNZERO | pagemap._GUARD}.get(request.param)
    real = fcntl.ioctl

    def ioctl(descriptor: int, number: int, argument: bytearray) -> int:
        if refused is None or pagemap._ARGUMENT.unpack(argument)[8] == refused:
            raise OSError(errno.EINVAL if refused else errno.ENOTTY, "refused")
        return int(real(descriptor, number, argument))

    if request.param != "ranges":
        monkeypatch.setattr(fcntl, "ioctl", ioctl)
    if request.param == "words-in-python":
        monkeypatch.setattr(pagemap, "EXTENSION", None)
    monkeypatch.setattr(pagemap, "_WORDS", 100)
    return str(request.param)


@pytest.fixture
def mapping() -> Iterator[Mapping]:
    with Mapping(PAGES) as made:
        yield made


def populated(mapping: Mapping, first: int = 0, end: int = PAGES) -> Runs:
    found = native.populated_runs(ME, mapping.at(first), (end - first) * PAGE)
    return [((start - mapping.address) // PAGE, length // PAGE) for start, length in found]


def test_untouched_memory_holds_nothing(mapping: Mapping) -> None:
    assert populated(mapping) == []


@pytest.mark.parametrize("run", [(0, PAGES), (0, 1), (PAGES - 1, 1), (7, 1000)])
def test_one_run(mapping: Mapping, run: tuple[int, int]) -> None:
    mapping.write(run[0] * PAGE, b"1" * (run[1] * PAGE))
    assert populated(mapping) == [run]


def test_every_other_page(mapping: Mapping) -> None:
    for number in range(0, PAGES, 2):
        mapping.write(number * PAGE, b"1")
    assert populated(mapping) == [(number, 1) for number in range(0, PAGES, 2)]


def test_part_of_a_run(mapping: Mapping) -> None:
    mapping.write(0, b"1" * (PAGES * PAGE))
    assert populated(mapping, 3, 500) == [(3, 497)]
    assert populated(mapping, 3, 3) == []


def test_protection_does_not_matter(mapping: Mapping) -> None:
    mapping.write(0, b"1" * (10 * PAGE))
    mapping.protect(0, 5, 0)
    mapping.protect(5, 10, 1)
    assert populated(mapping) == [(0, 10)]


def test_holes_hold_nothing(mapping: Mapping) -> None:
    mapping.write(0, b"1" * (10 * PAGE))
    mapping.unmap(4, 6)
    assert populated(mapping) == [(0, 4), (6, 4)]


def test_the_page_of_zeroes_is_left_out_where_the_kernel_tells(
    mapping: Mapping, kernel: str
) -> None:
    mapping.write(0, b"1" * PAGE)
    mapping.read(0, 3 * PAGE)  # maps the kernel's own page of zeroes
    assert populated(mapping) == ([(0, 3)] if kernel.startswith("words") else [(0, 1)])


def test_guard_regions_are_left_out_where_the_kernel_tells(mapping: Mapping, kernel: str) -> None:
    mapping.write(0, b"1" * (10 * PAGE))
    mapping.guard(3, 5)
    told = kernel != "no-guard" and tells_guards(mapping, 3)
    assert populated(mapping) == ([(0, 3), (5, 5)] if told else [(0, 10)])


def test_a_process_that_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        for _ in ("zombie", "gone"):
            with pytest.raises(native.MemoryFault, match="has ended") as caught:
                native.populated_runs(process.pid, 4 * PAGE, PAGE)
            assert (caught.value.pid, caught.value.address) == (process.pid, 4 * PAGE)
            process.wait()


def test_a_process_that_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is gone then: that it holds nothing would be a wrong answer."""
    find = pagemap._find

    def ended(descriptor: int, start: int, end: int) -> Runs:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return find(descriptor, start, end)

    with subprocess.Popen(["sleep", "60"]) as process:
        monkeypatch.setattr(pagemap, "_find", ended)
        with pytest.raises(native.MemoryFault, match="has ended"):
            native.populated_runs(process.pid, 0, PAGE << 20)
        process.kill()


def test_only_whole_pages() -> None:
    for start, length in ((1, PAGE), (0, 1), (0, PAGE + 1)):
        with pytest.raises(UsageError, match="Not on pages"):
            native.populated_runs(ME, start, length)
