"""Pages that a fork left in common are found, exactly those."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.errors import UsageError
from gpusnap.native import MemoryFault, shared_runs
from tests.forks import Forks
from tests.native.mapping import PAGE

PAGES = 3000


@pytest.fixture
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        forks.do(f"m = Mapping({PAGES})")
        yield forks


@pytest.fixture
def start(forks: Forks) -> int:
    return forks.do("result = m.address")


def shared(pid: int, start: int) -> set[int]:
    """Numbers of the pages that are shared."""
    return {
        (address - start) // PAGE + number
        for address, length in shared_runs(pid, start, PAGES * PAGE)
        for number in range(length // PAGE)
    }


def test_no_fork(forks: Forks, start: int) -> None:
    forks.do("m.write(0, bytes([1]) * PAGE * 3000)")
    assert shared(forks.pid, start) == set()


def test_a_fork_shares_what_there_was(forks: Forks, start: int) -> None:
    forks.do("[m.write(page * PAGE, b'x') for page in range(0, 3000, 3)]")
    child = forks.do("result = fork()")
    assert shared(forks.pid, start) == shared(child, start) == set(range(0, 3000, 3))


@pytest.mark.parametrize("writer", ["parent", "child"])
def test_what_either_writes_is_no_longer_shared(forks: Forks, start: int, writer: str) -> None:
    forks.do("m.write(0, bytes([1]) * PAGE * 3000)")
    forks.do("change = lambda: [m.write(page * PAGE, b'y') for page in range(1000, 3000, 2)]")
    if writer == "child":
        child = forks.do("result = fork(change)")
    else:
        child = forks.do("result = fork()")
        forks.do("change()")
    expected = set(range(PAGES)) - set(range(1000, 3000, 2))
    assert shared(forks.pid, start) == shared(child, start) == expected


def test_zeroes_that_were_only_read_are_not_shared(forks: Forks, start: int) -> None:
    forks.do("m.read(0, PAGE * 3000)")
    forks.do("m.write(0, b'x')")
    child = forks.do("result = fork()")
    assert shared(child, start) == {0}


def test_a_child_that_ended_shares_nothing(forks: Forks, start: int) -> None:
    forks.do("m.write(0, bytes([1]) * PAGE * 3000)")
    child = forks.do("result = fork()")
    assert shared(forks.pid, start) == set(range(PAGES))
    forks.do(f"os.kill({child}, 9); os.waitpid({child}, 0)")
    until = time.monotonic() + 60
    while shared(forks.pid, start) and time.monotonic() < until:
        time.sleep(0.01)  # who reads of a process just then keeps its memory for that long
    assert shared(forks.pid, start) == set()


def test_huge_pages(forks: Forks) -> None:
    forks.do("import ctypes, mmap; h = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | 0x20)")
    forks.do("h.madvise(mmap.MADV_HUGEPAGE); h.write(bytes([1]) * (8 << 20))")
    place = forks.do("result = ctypes.addressof(ctypes.c_char.from_buffer(h))")
    assert list(shared_runs(forks.pid, place, 8 << 20)) == []
    forks.do("fork()")
    assert sum(length for _, length in shared_runs(forks.pid, place, 8 << 20)) == 8 << 20


def test_it_ends_while_it_is_looked_at(forks: Forks, start: int) -> None:
    forks.do("[m.write(page * PAGE, b'x') for page in (0, 2000)]")
    forks.do("fork()")
    found = shared_runs(forks.pid, start, PAGES * PAGE)
    assert next(found) == (start, PAGE)
    os.kill(forks.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # as some kernels say of what has no memory
        while Path(f"/proc/{forks.pid}/maps").read_bytes():
            time.sleep(0.001)
    with pytest.raises(MemoryFault, match="has ended"):
        next(found)


def test_no_such_process() -> None:
    with pytest.raises(MemoryFault):
        list(shared_runs(2**22 + 1, 0, PAGE))


@pytest.mark.parametrize(("start", "length"), [(1, PAGE), (0, 1)])
def test_no_whole_pages(start: int, length: int) -> None:
    with pytest.raises(UsageError):
        list(shared_runs(os.getpid(), start, length))
