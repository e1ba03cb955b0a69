"""Restores by the real CRIU: all of the target comes back, or nothing of it remains."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusnap.criu import Criu, Session
from gpusnap.errors import CriuError, DeadlineError
from gpusnap.types import ProcessId
from tests.criu.conftest import Clock, agree, dump_request, restore_request
from tests.criu.counters import FORKS, Counter
from tests.endings import reaped_at_a_look, running
from tests.pids import Stranger, kill

pytestmark = pytest.mark.usefixtures("root")

STAGES = ("pre-restore", "post-restore", "pre-resume", "post-resume")


def test_the_target_counts_on_from_where_it_was(criu: Criu, saved: Counter) -> None:
    before = saved.count
    assert Session(criu).restore(restore_request(saved), agree) == saved.pid
    assert saved.computes()
    assert saved.count > before


def test_stages_come_in_order_and_the_tree_is_whole_before_it_runs(
    criu: Criu, saved: Counter
) -> None:
    before = saved.count
    seen: list[tuple[str, int | None, bool]] = []

    def notify(script: str, pid: int | None) -> bool:
        seen.append((script, pid, saved.count == before))
        return True

    Session(criu).restore(restore_request(saved), notify)
    # The tree runs from the answer to pre-resume on, so that the last stage may find it either way
    assert [each[:2] for each in seen] == [
        ("pre-restore", None),
        ("post-restore", saved.pid),
        ("pre-resume", None),
        ("post-resume", None),
    ]
    assert all(still for _, _, still in seen[:3])


@pytest.mark.parametrize("stage", ["pre-restore", "post-restore"])
def test_a_refused_restore_leaves_no_process(criu: Criu, saved: Counter, stage: str) -> None:
    before = saved.count
    with pytest.raises(CriuError, match=f"told to stop at its stage '{stage}'"):
        Session(criu).restore(restore_request(saved), lambda script, _pid: script != stage)
    assert not saved.exists()
    assert saved.count == before


@pytest.mark.parametrize("stage", STAGES)
def test_an_exception_at_any_stage_leaves_no_process(
    criu: Criu, saved: Counter, stage: str
) -> None:
    class OwnError(Exception):
        pass

    def notify(script: str, _pid: int | None) -> bool:
        if script == stage:
            raise OwnError
        return True

    with pytest.raises(OwnError):
        Session(criu).restore(restore_request(saved), notify)
    assert not saved.exists()


@pytest.fixture
def forker(criu: Criu, start: Callable[..., Counter]) -> Iterator[Counter]:
    """A counter that was dumped and is gone, and that forks as soon as it runs again."""
    counter = start(FORKS)
    Session(criu).dump(dump_request(counter, leave_running=False), agree)
    assert counter.wait_gone()
    (counter.folder / "fork").touch()
    yield counter
    for pid in running(counter.out):
        kill(pid)


def await_child(forker: Counter) -> None:
    while not (forker.folder / "forked").exists():
        time.sleep(0.005)
    assert len(running(forker.out)) == 2


def test_an_exception_leaves_no_process_that_was_forked_since(criu: Criu, forker: Counter) -> None:
    class OwnError(Exception):
        pass

    def notify(script: str, _pid: int | None) -> bool:
        if script == "post-resume":
            await_child(forker)
            raise OwnError
        return True

    with pytest.raises(OwnError):
        Session(criu).restore(restore_request(forker), notify)
    assert running(forker.out) == []


def test_criu_killed_leaves_no_process_that_was_forked_since(criu: Criu, forker: Counter) -> None:
    session = Session(criu)

    def notify(script: str, _pid: int | None) -> bool:
        if script == "post-resume":
            await_child(forker)
            os.kill(session.pid, signal.SIGKILL)
            time.sleep(0.05)
        return True

    with pytest.raises(CriuError, match=r"killed by signal 9"):
        session.restore(restore_request(forker), notify)
    assert running(forker.out) == []


def test_one_that_is_reaped_at_this_moment_does_not_exist(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is killed here is a zombie until init reaps it: it must not be taken for one that runs.

    It is the counter's own look that is under test, which all the tests here rely on.
    """
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(counter, "pid", reaped_at_a_look(meanwhile))
        assert not counter.exists()
    assert counter.exists()


def test_what_the_kernel_does_not_end_in_time_is_told(
    criu: Criu, saved: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose thread is busy in a driver dies late; here it does not die at all."""
    monkeypatch.setattr("gpusnap.ending.kill", lambda _process: None)
    monkeypatch.setattr("gpusnap.criu.leftovers.END_SECONDS", 0)

    def notify(script: str, _pid: int | None) -> bool:
        if script == "post-resume":
            raise CriuError("It fails")
        return True

    session = Session(criu)
    with pytest.raises(CriuError, match="It fails") as caught:
        session.restore(restore_request(saved), notify)
    assert f"Process {saved.pid} was killed but is still there" in caught.value.details
    assert not session.undone


def test_what_criu_killed_and_still_ends_is_not_undone(
    criu: Criu, saved: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU kills and does not wait; one that is stuck in a driver is there after its answer."""
    still = (ProcessId(saved.pid, 1),)
    monkeypatch.setattr("gpusnap.criu.leftovers.wait_gone", lambda _made, _seconds: still)
    session = Session(criu)
    with pytest.raises(CriuError) as caught:
        session.restore(restore_request(saved), lambda script, _pid: script != "post-restore")
    assert f"Process {saved.pid} was killed but is still there" in caught.value.details
    assert not session.undone


@pytest.mark.parametrize("stage", STAGES)
def test_criu_killed_at_any_stage_leaves_no_process(criu: Criu, saved: Counter, stage: str) -> None:
    session = Session(criu)

    def notify(script: str, _pid: int | None) -> bool:
        if script == stage:
            os.kill(session.pid, signal.SIGKILL)
            time.sleep(0.05)
        return True

    with pytest.raises(CriuError, match=f"killed by signal 9 .* stage '{stage}'"):
        session.restore(restore_request(saved), notify)
    assert not saved.exists()


def test_a_restore_that_hangs_is_stopped_and_leaves_no_process(
    criu: Criu, saved: Counter, clock: Clock
) -> None:
    session = Session(criu)

    def notify(script: str, _pid: int | None) -> bool:
        if script == "post-restore":
            os.kill(session.pid, signal.SIGSTOP)
            clock.jump(0.5)
        return True

    with pytest.raises(DeadlineError, match="stage 'post-restore'"):
        session.restore(restore_request(saved), notify)
    assert not Path(f"/proc/{session.pid}").exists()
    assert not saved.exists()


def test_a_snapshot_can_be_restored_again_after_a_failure(criu: Criu, saved: Counter) -> None:
    with pytest.raises(CriuError):
        Session(criu).restore(restore_request(saved), lambda script, _pid: script != "post-restore")
    assert saved.wait_gone()
    Session(criu).restore(restore_request(saved), agree)
    assert saved.computes()


@pytest.fixture
def saved_job(
    criu: Criu,
    start: Callable[..., Counter],
) -> Counter:
    """A counter of this very session, as a shell's job is of the shell's; dumped and gone."""
    counter = start(start_new_session=False)
    request = dump_request(counter, leave_running=False, shell_job=True)
    Session(criu).dump(request, agree)
    assert counter.wait_gone()
    return counter


def test_a_job_comes_back_into_the_session(criu: Criu, saved_job: Counter) -> None:
    Session(criu).restore(restore_request(saved_job, shell_job=True), agree)
    assert saved_job.computes()
    assert os.getsid(saved_job.pid) == os.getsid(0)


def test_criu_killed_over_a_job_leaves_the_session_alone(criu: Criu, saved_job: Counter) -> None:
    session = Session(criu)

    def notify(script: str, _pid: int | None) -> bool:
        if script == "post-restore":
            os.kill(session.pid, signal.SIGKILL)
        return True

    with subprocess.Popen([sys.executable, "-S", "-E", "-c", "input()"], stdin=-1) as bystander:
        with pytest.raises(CriuError, match=r"killed by signal 9"):
            session.restore(restore_request(saved_job, shell_job=True), notify)
        assert not saved_job.exists()
        assert bystander.poll() is None
        bystander.communicate(b"\n")


def test_a_taken_pid_is_named_with_its_holder(criu: Criu, saved: Counter) -> None:
    with Stranger(saved.pid) as stranger:
        with pytest.raises(CriuError, match=f"PID {saved.pid} is taken, .*: it is sleep"):
            Session(criu).restore(restore_request(saved), agree)
        assert stranger.poll() is None, "The process that has the PID was there first and stays"


def test_a_pid_taken_by_a_zombie_is_named_with_its_parent(criu: Criu, saved: Counter) -> None:
    with Stranger(saved.pid, "true") as stranger:
        stranger.await_zombie()
        with pytest.raises(CriuError, match=f"has ended and waits for PID {os.getpid()}"):
            Session(criu).restore(restore_request(saved), agree)
