"""Which memory of a program goes past CRIU: large, private, anonymous, and no fork's common one."""

import os
import signal
from collections.abc import Iterator

import pytest

from gpusnap.datapath import Kind, Span
from gpusnap.regions import MINIMUM_HOST, STEADY_HOST, RegionsMovedError, host_spans, settle
from gpusnap.target import find_target, read_maps
from tests.forks import Forks
from tests.native.mapping import PAGE

SIZE = 24 << 20
LARGE = f"Mapping({SIZE} // PAGE)"


@pytest.fixture
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        forks.do(f"m = {LARGE}; fill(m)")
        yield forks


@pytest.fixture
def start(forks: Forks) -> int:
    return forks.do("result = m.address")


def chosen(pid: int, *taken: Span) -> set[Span]:
    return set(host_spans(find_target(pid), taken, STEADY_HOST))


def host(pid: int, start: int, length: int = SIZE) -> Span:
    return Span(pid=pid, start=start, length=length, kind=Kind.HOST)


def test_one_process(forks: Forks, start: int) -> None:
    assert chosen(forks.pid) == {host(forks.pid, start)}


def test_small_memory_is_left_to_criu(forks: Forks) -> None:
    forks.do(f"large = Mapping({MINIMUM_HOST} // PAGE); large.write(0, b'x')")
    forks.do(f"small = Mapping({MINIMUM_HOST} // PAGE - 1); small.write(0, b'x')")
    large, small = (forks.do(f"result = {name}.address") for name in ("large", "small"))
    found = host_spans(find_target(forks.pid), ())
    assert host(forks.pid, large, MINIMUM_HOST) in found
    assert small not in {span.start for span in found}


def test_what_is_taken_already(forks: Forks, start: int) -> None:
    device = Span(pid=forks.pid, start=start + SIZE - PAGE, length=PAGE, kind=Kind.DEVICE)
    other = Span(pid=forks.pid + 1, start=start, length=SIZE, kind=Kind.DEVICE)
    assert chosen(forks.pid, device, other) == {host(forks.pid, start, SIZE - PAGE)}


def test_common_memory_of_a_fork_is_left_to_criu(forks: Forks) -> None:
    forks.do("fork()")
    assert chosen(forks.pid) == set()


def test_memory_of_each_process(forks: Forks, start: int) -> None:
    child = forks.do("result = fork(lambda: fill(m))")
    forks.do(f"own = {LARGE}; fill(own)")
    own = forks.do("result = own.address")
    assert chosen(forks.pid) == {
        host(forks.pid, start),
        host(forks.pid, own),
        host(child, start),
    }


def test_the_large_part_that_is_not_common(forks: Forks, start: int) -> None:
    child = forks.do("result = fork(lambda: fill(m, 1))")
    expected = (start + PAGE, SIZE - PAGE)
    assert chosen(forks.pid) == {host(forks.pid, *expected), host(child, *expected)}


def test_a_child_that_ends_meanwhile(forks: Forks, start: int) -> None:
    child = forks.do("result = fork(lambda: fill(m))")
    target = find_target(forks.pid)
    os.kill(child, signal.SIGKILL)
    forks.do(f"os.waitpid({child}, 0)")
    assert host_spans(target, (), STEADY_HOST) == (host(forks.pid, start),)


def test_settled(forks: Forks, start: int) -> None:
    child = forks.do("result = fork(lambda: fill(m))")
    target = find_target(forks.pid)
    spans = host_spans(target, (), STEADY_HOST)
    assert set(settle(spans, target).spans) == {host(forks.pid, start), host(child, start)}


def test_a_fork_meanwhile(forks: Forks) -> None:
    spans = host_spans(find_target(forks.pid), (), STEADY_HOST)
    forks.do("fork()")
    with pytest.raises(RegionsMovedError):
        settle(spans, find_target(forks.pid))


def test_a_fork_meanwhile_is_no_matter_for_device_memory(forks: Forks, start: int) -> None:
    device = Span(pid=forks.pid, start=start, length=SIZE, kind=Kind.DEVICE)
    forks.do("fork()")
    assert settle((device,), find_target(forks.pid)) == ((device,), ())


def test_device_memory_that_is_all_there(forks: Forks, start: int) -> None:
    device = Span(pid=forks.pid, start=start, length=SIZE, kind=Kind.DEVICE)
    assert settle((device,), find_target(forks.pid)).holds_devices(SIZE)
    forks.do("m.unmap(0, 1)")
    assert not settle((device,), find_target(forks.pid)).holds_devices(SIZE)


def test_device_memory_that_may_be_run(forks: Forks, start: int) -> None:
    device = Span(pid=forks.pid, start=start, length=SIZE, kind=Kind.DEVICE)
    forks.do("m.protect(1, 2, 5)")
    assert not settle((device,), find_target(forks.pid)).holds_devices(SIZE)


def test_unmapped_meanwhile(forks: Forks) -> None:
    target = find_target(forks.pid)
    spans = host_spans(target, (), STEADY_HOST)
    forks.do("m.unmap(0, m.pages)")
    assert settle(spans, target) == ((), ())


def test_something_else_is_there_meanwhile(forks: Forks, start: int) -> None:
    target = find_target(forks.pid)
    spans = host_spans(target, (), STEADY_HOST)
    forks.do("import ctypes; c = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p")
    forks.do("c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3]")
    shared_fixed = 0x31
    forks.do(f"assert c.mmap({start}, {SIZE}, 3, {shared_fixed}, -1, 0) == {start}")
    with pytest.raises(RegionsMovedError):
        settle(spans, target)


HEAP = (
    "import ctypes; c = ctypes.CDLL(None); c.sbrk.argtypes = [ctypes.c_long]; "
    "c.sbrk.restype = ctypes.c_void_p; "
)


def heap(forks: Forks) -> Span:
    (found,) = (each for each in read_maps(forks.pid) if each.path == "[heap]")
    return host(forks.pid, found.start, found.length)


def test_the_heap(forks: Forks, start: int) -> None:
    forks.do(HEAP + f"c.sbrk({SIZE})")
    spans = chosen(forks.pid)
    assert spans == {heap(forks), host(forks.pid, start)}
    before = heap(forks)
    forks.do(f"c.sbrk({SIZE})")  # what has come since is left to CRIU
    assert settle([before], find_target(forks.pid)) == ((before,), ())
    forks.do(f"c.sbrk({-SIZE - PAGE})")
    assert settle([before], find_target(forks.pid)) == ((heap(forks),), ())
    assert heap(forks).length == before.length - PAGE


def test_memory_that_may_be_run(forks: Forks, start: int) -> None:
    """CRIU writes into it: what becomes such memory too late is not copied meanwhile."""
    spans = host_spans(find_target(forks.pid), (), STEADY_HOST)
    assert settle(spans, find_target(forks.pid)) == ((host(forks.pid, start),), ())
    forks.do("m.protect(1, 2, 5)")
    parts = {
        host(forks.pid, start, PAGE),
        host(forks.pid, start + PAGE, PAGE),
        host(forks.pid, start + 2 * PAGE, SIZE - 2 * PAGE),
    }
    settled = settle(spans, find_target(forks.pid))
    middle = host(forks.pid, start + PAGE, PAGE)
    assert (set(settled.spans), settled.runnable) == (parts, (middle,))
    forks.do("m.protect(0, m.pages, 7)")
    assert chosen(forks.pid) == set()
