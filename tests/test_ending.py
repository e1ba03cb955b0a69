"""Processes are killed by their identity, and waited for."""

import subprocess
import threading
from collections.abc import Iterator

import msgspec
import pytest

from gpusnap.ending import kill, wait_gone
from gpusnap.target import alive, identity
from gpusnap.types import ProcessId
from tests.endings import headless


@pytest.fixture
def sleeper() -> Iterator[ProcessId]:
    process = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
    found = identity(process.pid)
    assert found is not None
    yield found
    process.kill()
    process.wait()


def test_a_process_is_killed_and_waited_for(sleeper: ProcessId) -> None:
    kill(sleeper)
    assert wait_gone([sleeper], 60) == ()
    assert not alive(sleeper)
    kill(sleeper)  # a zombie by now


def test_threads_that_outlive_the_first_are_waited_for() -> None:
    with headless() as process:
        assert wait_gone([process], 0) == (process,)
        kill(process)
        assert wait_gone([process], 60) == ()


def test_whoever_got_its_pid_meanwhile_is_left_alone(sleeper: ProcessId) -> None:
    before = msgspec.structs.replace(sleeper, start_ticks=sleeper.start_ticks - 1)
    kill(before)
    assert alive(sleeper)
    assert wait_gone([sleeper], 0) == (sleeper,)


def test_one_that_is_gone_is_no_matter() -> None:
    with subprocess.Popen(["true"]) as process:
        found = identity(process.pid)
    assert found is not None
    kill(found)
    assert wait_gone([found], 0) == ()


def test_a_thread_that_has_the_number_is_no_process() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        found = identity(thread.native_id or 0)
        assert found is not None
        kill(found)
    finally:
        done.set()
        thread.join()
