"""Processes are killed by their identity, with what they forked, and waited for."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpusnap.ending import kill, stop_trees, wait_gone
from gpusnap.target import alive, identity, stands
from gpusnap.types import ProcessId
from tests.endings import FAMILY, ORPHAN, forking, headless, running


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that pauses stops nobody in time, and what runs on is not what is tested here."""
    monkeypatch.setattr("gpusnap.ending._STOP_S", 60)
    monkeypatch.setattr("gpusnap.ending._SEARCH_S", 120)


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


def end(processes: Iterable[ProcessId]) -> None:
    doomed = stop_trees(processes)
    for process in doomed:
        kill(process)
    assert wait_gone(doomed, 60) == ()


@pytest.mark.parametrize("sessions", ["together", "apart"])
def test_three_generations_that_fork_on_are_ended(tmp_path: Path, sessions: str) -> None:
    mark = tmp_path / "family"
    made = [mark.with_suffix(f".{number}") for number in range(3)]
    with forking(FAMILY, mark, sessions, made=made) as process:
        assert len(running(mark)) >= 4
        end([process])
        assert running(mark) == []


def test_children_are_named_before_their_parents(tmp_path: Path) -> None:
    """The end of a parent may have the kernel continue the children that were stopped."""
    mark = tmp_path / "family"
    made = [mark.with_suffix(f".{number}") for number in range(3)]
    with forking(FAMILY, mark, "together", made=made) as process:
        stopped = stop_trees([process])
        assert len(stopped) >= 4
        assert stopped[-1] == process
        assert all(map(stands, stopped))
        assert set(running(mark)) <= {each.pid for each in stopped}


def test_an_orphan_is_known_by_its_session(tmp_path: Path) -> None:
    mark = tmp_path / "orphan"
    with forking(ORPHAN, mark, made=[mark]) as process:
        assert len(running(mark)) >= 2
        end([process])
        assert running(mark) == []


def test_children_and_session_of_whoever_got_the_pid_are_left_alone(tmp_path: Path) -> None:
    mark = tmp_path / "orphan"
    with forking(ORPHAN, mark, made=[mark]) as process:
        before = msgspec.structs.replace(process, start_ticks=process.start_ticks - 1)
        assert stop_trees([before]) == (before,)
        assert not stands(process)
        assert len(running(mark)) >= 2


def test_others_of_a_session_that_another_one_leads_are_left_alone(sleeper: ProcessId) -> None:
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL) as bystander:
        end([sleeper])
        assert bystander.poll() is None
        bystander.kill()


def test_who_ends_them_is_none_of_them() -> None:
    """As in a shell that was half restored, where somebody runs gpusnap recover."""
    within = """
import os
from gpusnap.ending import stop_trees
from gpusnap.target import identity
print(os.getppid(), *[each.pid for each in stop_trees([identity(os.getppid())])], flush=True)
"""
    shell = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {within!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", shell], stdout=subprocess.PIPE, start_new_session=True
    ) as outer:
        assert outer.stdout is not None
        try:
            answered, _, _ = select.select([outer.stdout], [], [], 60)
            assert answered, "it has stopped itself"
            parent, *stopped = outer.stdout.readline().split()
        finally:
            os.killpg(outer.pid, signal.SIGKILL)
    assert stopped == [parent]


def test_one_that_does_not_stop_is_killed_all_the_same(
    sleeper: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that stands in a call of its driver."""
    monkeypatch.setattr("gpusnap.ending.stands", lambda _process: False)
    monkeypatch.setattr("gpusnap.ending._STOP_S", 0)
    end([sleeper])
    assert not alive(sleeper)


def test_a_thread_that_runs_while_the_first_has_ended_is_seen() -> None:
    with headless() as process:
        assert not stands(process)
        stop_trees([process])
        assert stands(process)


def test_an_interrupt_leaves_none_stopped(
    sleeper: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(_process: ProcessId) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpusnap.ending.stands", press)
    with pytest.raises(KeyboardInterrupt):
        stop_trees([sleeper])
    assert wait_gone([sleeper], 60) == ()
