"""Freed memory is kept where gpusnap is a program of its own."""

import platform
import subprocess
import sys

import pytest

from gpusnap import cli
from gpusnap.cli import _main
from gpusnap.datapath import heap

FAULTS = """
import resource, sys
from gpusnap.datapath.heap import keep_freed_memory

def chunks():
    for _ in range(20):
        blocks = [bytes(b"x") * (1 << 20) for _ in range(5)]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    chunks()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
print(min(faults() for _ in range(5)))  # the first needs memory; the kernel may move some later
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc gives memory back")
def test_blocks_of_a_chunk_are_used_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < 256  # of one of the hundred blocks


def test_the_command_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(heap, "keep_freed_memory", lambda: asked.append(True))
    monkeypatch.setattr(heap, "collect_seldom", lambda: asked.append(True))
    monkeypatch.setattr(_main, "run", lambda _arguments: len(asked))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2


def test_objects_that_stay_are_not_gone_through_again_and_again() -> None:
    program = """
import gc
from gpusnap.datapath.heap import collect_seldom
collect_seldom()
before = gc.get_stats()[0]["collections"]
kept = [(number, []) for number in range(90_000)]
print(gc.get_stats()[0]["collections"] - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) <= 1


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusnap.datapath.heap.ctypes.CDLL", lambda _name: object())
    heap.keep_freed_memory()
