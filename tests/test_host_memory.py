"""Which memory of a program goes past CRIU: large, private, anonymous, and no fork's common one."""

import os
import signal
from collections.abc import Iterator

import pytest

from gpusnap.datapath import Kind, Span
from gpusnap.regions import MINIMUM_HOST, RegionsMovedError, host_spans, settle
from gpusnap.target import find_target
from tests.forks import Forks
from tests.native.mapping import PAGE

SIZE = 24 << 20
LARGE = f"Mapping({SIZE} // PAGE)"
WRITE = f"write(0, bytes([1]) * {SIZE})"


@pytest.fixture
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        forks.do(f"m = {LARGE}; m.{WRITE}")
        yield forks


@pytest.fixture
def start(forks: Forks) -> int:
    return forks.do("result = m.address")


def chosen(pid: int, *taken: Span) -> set[Span]:
    return set(host_spans(find_target(pid), taken))


def host(pid: int, start: int, length: int = SIZE) -> Span:
    return Span(pid=pid, start=start, length=length, kind=Kind.HOST)


def test_one_process(forks: Forks, start: int) -> None:
    assert chosen(forks.pid) == {host(forks.pid, start)}


def test_small_memory_is_left_to_criu(forks: Forks, start: int) -> None:
    forks.do(f"small = Mapping({MINIMUM_HOST} // PAGE - 1); small.write(0, b'x')")
    assert chosen(forks.pid) == {host(forks.pid, start)}


def test_what_is_taken_already(forks: Forks, start: int) -> None:
    device = Span(pid=forks.pid, start=start + SIZE - PAGE, length=PAGE, kind=Kind.DEVICE)
    other = Span(pid=forks.pid + 1, start=start, length=SIZE, kind=Kind.DEVICE)
    assert chosen(forks.pid, device, other) == {host(forks.pid, start, SIZE - PAGE)}


def test_common_memory_of_a_fork_is_left_to_criu(forks: Forks) -> None:
    forks.do("fork()")
    assert chosen(forks.pid) == set()


def test_memory_of_each_process(forks: Forks, start: int) -> None:
    child = forks.do(f"result = fork(lambda: m.{WRITE})")
    forks.do(f"own = {LARGE}; own.{WRITE}")
    own = forks.do("result = own.address")
    assert chosen(forks.pid) == {
        host(forks.pid, start),
        host(forks.pid, own),
        host(child, start),
    }


def test_the_large_part_that_is_not_common(forks: Forks, start: int) -> None:
    child = forks.do("result = fork(lambda: m.write(PAGE, bytes([2]) * (24 * 2**20 - PAGE)))")
    expected = (start + PAGE, SIZE - PAGE)
    assert chosen(forks.pid) == {host(forks.pid, *expected), host(child, *expected)}


def test_a_child_that_ends_meanwhile(forks: Forks, start: int) -> None:
    child = forks.do(f"result = fork(lambda: m.{WRITE})")
    target = find_target(forks.pid)
    os.kill(child, signal.SIGKILL)
    forks.do(f"os.waitpid({child}, 0)")
    assert host_spans(target, ()) == (host(forks.pid, start),)


def test_settled(forks: Forks, start: int) -> None:
    child = forks.do(f"result = fork(lambda: m.{WRITE})")
    target = find_target(forks.pid)
    spans = host_spans(target, ())
    assert set(settle(spans, target)) == {host(forks.pid, start), host(child, start)}


def test_a_fork_meanwhile(forks: Forks) -> None:
    spans = host_spans(find_target(forks.pid), ())
    forks.do("fork()")
    with pytest.raises(RegionsMovedError):
        settle(spans, find_target(forks.pid))


def test_a_fork_meanwhile_is_no_matter_for_device_memory(forks: Forks, start: int) -> None:
    device = Span(pid=forks.pid, start=start, length=SIZE, kind=Kind.DEVICE)
    forks.do("fork()")
    assert settle((device,), find_target(forks.pid)) == (device,)


def test_unmapped_meanwhile(forks: Forks) -> None:
    target = find_target(forks.pid)
    spans = host_spans(target, ())
    forks.do("m.unmap(0, m.pages)")
    assert settle(spans, target) == ()


def test_something_else_is_there_meanwhile(forks: Forks, start: int) -> None:
    target = find_target(forks.pid)
    spans = host_spans(target, ())
    forks.do("import ctypes; c = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p")
    forks.do("c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3]")
    shared_fixed = 0x31
    forks.do(f"assert c.mmap({start}, {SIZE}, 3, {shared_fixed}, -1, 0) == {start}")
    with pytest.raises(RegionsMovedError):
        settle(spans, target)
