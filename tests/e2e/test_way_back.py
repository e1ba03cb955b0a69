"""What is interrupted twice, or at the very end; a target, or memory of it, gone too soon."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import gpusnap
from gpusnap import dump_session
from gpusnap.criu import service, session
from gpusnap.datapath import Kind, Span
from gpusnap.dump_session import DumpSession
from gpusnap.errors import CriuError, DeviceError, TargetError
from gpusnap.events import (
    CriuNotified,
    Event,
    Phase,
    PhaseStarted,
    SnapshotPublished,
    SnapshotRestored,
)
from gpusnap.hookspecs import hookimpl
from gpusnap.journal import entries, state_directory
from gpusnap.plugins import Backend, default_plugins
from gpusnap.recovery import recover
from gpusnap.regions import STEADY_HOST, host_spans
from gpusnap.repository import Snapshot
from gpusnap.restore_images import open_regions
from gpusnap.restore_session import RestoreSession
from gpusnap.target import alive, identity, read_status, stands
from gpusnap.testing import create_machine
from gpusnap.thp import SWITCH
from gpusnap.types import DeviceState, ProcessId, Target
from tests.e2e.jobs import Job, Site, await_true, start_detached
from tests.e2e.test_new_pids import set_variables
from tests.endings import running
from tests.faults.commands import Commands
from tests.pids import Stranger, kill

PROGRAM = f"""
import mmap, pathlib, signal, sys
memory = mmap.mmap(-1, {2 * STEADY_HOST}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_DONTDUMP)  # so the kernel merges it with no other mapping
memory.write(b"x" * len(memory))
dropped = pathlib.Path(sys.argv[1])

def drop(*_):
    memory.close()
    dropped.touch()

signal.signal(signal.SIGUSR1, drop)
dropped.with_suffix(".ready").touch()
while True:
    signal.pause()
"""

FORKER = """
import os, sys, threading, time
from gpusnap.testing.device import SimulatedDevice

mark = sys.argv[1]
device = SimulatedDevice.open()
buffer = device.allocate(1 << 16)

def fork():  # once it is told to; the parent stands in a call of its device meanwhile
    while not os.path.exists(mark + ".fork"):
        time.sleep(0.005)
    if os.fork() == 0:
        open(mark + ".forked", "w").close()
        time.sleep(600)

threading.Thread(target=fork, daemon=True).start()
while True:
    device.launch(lambda memory: None, buffer)
    open(mark + ".ready", "w").close()
    time.sleep(0.01)
"""

HOLDER = """
import sys, time
from gpusnap.testing.device import SimulatedDevice

device = SimulatedDevice.open()
buffer = device.allocate(128 << 20)
while True:
    device.launch(lambda memory: None, buffer)
    open(sys.argv[1] + ".ready", "w").close()
    time.sleep(0.01)
"""

Do = Callable[[Event], None]


class Listener:
    """Does something at every event."""

    def __init__(self, do: Do) -> None:
        self._do = do

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        self._do(event)


@pytest.fixture
def at_events() -> Iterator[Callable[[Do], None]]:
    listeners: list[Listener] = []

    def listen(do: Do) -> None:
        listeners.append(Listener(do))
        default_plugins().register(listeners[-1], f"listener-{len(listeners)}")

    yield listen
    for listener in listeners:
        default_plugins().unregister(listener)


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    return tmp_path / "dropped"


@pytest.fixture
def pid(tmp_path: Path, dropped: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A program that has one large mapping, and gives it back at a signal."""
    site = Site.make(tmp_path / "site")
    set_variables(monkeypatch, site)
    command = [sys.executable, "-S", "-c", PROGRAM, str(dropped)]
    start_detached(command, tmp_path / "pid", site.environment)
    pid = int((tmp_path / "pid").read_text())
    await_true(dropped.with_suffix(".ready").exists, "its memory is there")
    yield pid
    if lives(pid):
        os.kill(pid, signal.SIGKILL)
        await_true(lambda: identity(pid) is None, "it is gone")


def lives(pid: int) -> bool:
    found = identity(pid)
    return found is not None and alive(found)


def interrupt_twice(first: Event) -> Do:
    """A user who presses Ctrl-C, and once more since that takes so long."""

    def press(event: Event) -> None:
        if event in (first, PhaseStarted(phase=Phase.ROLLBACK, total=0)):
            raise KeyboardInterrupt

    return press


def spoil_journal(last: type[Event]) -> Do:
    """The state folder cannot be used any more once all is done."""

    def spoil(event: Event) -> None:
        if isinstance(event, last):
            state_directory().rename(state_directory().with_name("moved"))
            state_directory().touch()

    return spoil


def test_a_checkpoint_interrupted_twice_can_be_recovered_at_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, at_events: Callable[[Do], None]
) -> None:
    set_variables(monkeypatch, job.site)
    at_events(interrupt_twice(PhaseStarted(phase=Phase.DUMP, total=0)))
    with pytest.raises(KeyboardInterrupt):
        gpusnap.create_checkpoint(job.pid, "one")
    (recovered,) = recover()
    assert not recovered.failed, recovered.outcome
    assert job.computes()


def test_a_restore_interrupted_twice_can_be_recovered_at_once(
    pid: int, at_events: Callable[[Do], None]
) -> None:
    gpusnap.create_checkpoint(pid, "one", leave_running=False)
    at_events(interrupt_twice(PhaseStarted(phase=Phase.CRIU_RESTORE, total=0)))
    with pytest.raises(KeyboardInterrupt):
        gpusnap.restore_checkpoint("one")
    (recovered,) = recover()
    assert not recovered.failed, recovered.outcome
    assert not lives(pid)


def test_an_interrupt_while_memory_is_put_back(pid: int, at_events: Callable[[Do], None]) -> None:
    gpusnap.create_checkpoint(pid, "one", leave_running=False)

    def press(event: Event) -> None:
        if event == CriuNotified(script="post-restore"):
            assert lives(pid), "it was made"
            raise KeyboardInterrupt

    at_events(press)
    with pytest.raises(KeyboardInterrupt):
        gpusnap.restore_checkpoint("one")
    assert not lives(pid)
    assert entries() == ()


def test_a_journal_that_cannot_be_removed_is_no_failure(
    pid: int, at_events: Callable[[Do], None]
) -> None:
    at_events(spoil_journal(SnapshotPublished))
    snapshot = gpusnap.create_checkpoint(pid, "one")
    assert isinstance(snapshot, gpusnap.Snapshot)
    os.kill(pid, signal.SIGKILL)
    await_true(lambda: identity(pid) is None, "it is gone")
    state_directory().unlink()
    at_events(spoil_journal(SnapshotRestored))
    assert gpusnap.restore_checkpoint("one").root_pid == pid
    assert lives(pid)


def test_a_target_killed_while_criu_hangs(
    pid: int, monkeypatch: pytest.MonkeyPatch, at_events: Callable[[Do], None]
) -> None:
    """As CRIU does by itself where it waits for a process that is killed while it traces it."""

    def strike(event: Event) -> None:
        if event == CriuNotified(script="post-dump"):
            os.kill(int(read_status(pid)["TracerPid"]), signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(session, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(service, "UNDO_SECONDS", 1)
    at_events(strike)
    with pytest.raises(TargetError, match=f"Process {pid} was killed while it was being saved"):
        gpusnap.create_checkpoint(pid, "one", timeout_us=60_000_000)
    await_true(lambda: identity(pid) is None, "its parent may reap it")
    assert entries() == ()


@pytest.mark.parametrize("leave_running", [True, False])
def test_memory_that_is_gone_when_it_is_to_be_saved(
    pid: int, dropped: Path, monkeypatch: pytest.MonkeyPatch, leave_running: bool
) -> None:
    chosen: list[Span] = []

    def choose(target: Target, taken: Sequence[Span], _minimum: int) -> tuple[Span, ...]:
        spans = host_spans(target, taken, STEADY_HOST)
        chosen.extend(spans)
        os.kill(pid, signal.SIGUSR1)
        await_true(dropped.exists, "it gave its memory back")
        return spans

    monkeypatch.setattr(dump_session, "host_spans", choose)
    gpusnap.create_checkpoint(pid, "one", leave_running=leave_running)
    assert [span.length for span in chosen] == [2 * STEADY_HOST]
    if leave_running:
        os.kill(pid, signal.SIGKILL)
        await_true(lambda: identity(pid) is None, "it is gone")
    assert gpusnap.restore_checkpoint("one").root_pid == pid


def test_a_criu_that_leaves_out_the_filling(
    pid: int, dropped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpusnap.create_checkpoint(pid, "one", leave_running=False)
    notified = RestoreSession._notified

    def leave_out(session: RestoreSession, script: str, root: int | None) -> bool:
        if script == "pre-resume":
            os.kill(pid, signal.SIGUSR1)  # the first thing that it would see if it ran
        return script == "post-restore" or notified(session, script, root)

    monkeypatch.setattr(RestoreSession, "_notified", leave_out)
    with pytest.raises(CriuError, match="run without their memory"):
        gpusnap.restore_checkpoint("one")
    assert not dropped.exists()
    assert not lives(pid)
    assert entries() == ()


def test_a_criu_that_leaves_out_the_copying(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    notified = DumpSession._notified

    def leave_out(session: DumpSession, script: str, pid: int | None, **more: Any) -> bool:
        return script == "post-dump" or notified(session, script, pid, **more)

    monkeypatch.setattr(DumpSession, "_notified", leave_out)
    with pytest.raises(CriuError, match="not that the processes stand still"):
        gpusnap.create_checkpoint(pid, "one")
    assert lives(pid)
    assert entries() == ()


def test_a_driver_that_does_not_know_what_was_restored(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, job.site)
    gpusnap.create_checkpoint(job.pid, "one", leave_running=False)
    monkeypatch.setattr(Backend, "state", lambda _backend, _pids: {})
    with pytest.raises(DeviceError, match="is gone, not checkpointed"):
        gpusnap.restore_checkpoint("one")
    assert not lives(job.pid)


def test_what_is_killed_and_does_not_end_is_told_and_left_to_recover(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, job.site)
    gpusnap.create_checkpoint(job.pid, "one", leave_running=False)
    with monkeypatch.context() as stuck:
        stuck.setattr(Backend, "state", lambda _backend, _pids: {})
        # As with a process that stands in a call of its driver: the kernel ends it later, or never
        stuck.setattr("gpusnap.ending.stop_trees", tuple)
        stuck.setattr("gpusnap.ending.kill", lambda _process: None)
        stuck.setattr("gpusnap.release._DEATH_S", 0)
        with pytest.raises(DeviceError, match="is gone, not checkpointed") as caught:
            gpusnap.restore_checkpoint("one")
        told = f"Process {job.pid} was killed but is still there"
        assert told in caught.value.details
        (stays,) = recover()
        assert (stays.outcome, stays.failed) == (told, True)
    assert lives(job.pid)
    (recovered,) = recover()
    assert recovered.outcome == f"half-restored processes were ended: {job.pid}"
    assert not lives(job.pid)
    assert entries() == ()


def test_what_gpusnap_was_about_to_kill_when_it_was_killed_is_not_taken_for_whole(
    pid: int, monkeypatch: pytest.MonkeyPatch, at_events: Callable[[Do], None]
) -> None:
    gpusnap.create_checkpoint(pid, "one", leave_running=False)

    def press(event: Event) -> None:
        if isinstance(event, SnapshotRestored):
            raise KeyboardInterrupt

    def die(_process: ProcessId) -> None:
        raise SystemExit

    at_events(press)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("gpusnap.ending.kill", die)
        with pytest.raises(SystemExit):
            gpusnap.restore_checkpoint("one")
    found = identity(pid)
    assert found is not None
    await_true(lambda: stands(found), "it was stopped before")
    (recovered,) = recover()
    assert recovered.outcome == f"half-restored processes were ended: {pid}"
    assert not lives(pid)


@pytest.fixture
def forker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A job that was saved and is gone, and that forks once it runs again; told by its mark."""
    site = Site.make(tmp_path / "site")
    set_variables(monkeypatch, site)
    mark = tmp_path / "job"
    start_detached([sys.executable, "-c", FORKER, str(mark)], tmp_path / "pid", site.environment)
    await_true(mark.with_suffix(".ready").exists, "it computes")
    gpusnap.create_checkpoint(int((tmp_path / "pid").read_text()), "one", leave_running=False)
    yield mark
    for pid in running(mark):
        kill(pid)


def have_it_fork(mark: Path) -> None:
    mark.with_suffix(".fork").touch()
    await_true(mark.with_suffix(".forked").exists, "it has forked")
    assert len(running(mark)) == 2


def test_what_was_forked_before_the_devices_failed_is_ended(
    forker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_backend: Backend, _pids: Sequence[int]) -> dict[int, DeviceState]:
        have_it_fork(forker)
        return {}

    monkeypatch.setattr(Backend, "state", fail)
    with pytest.raises(DeviceError, match="is gone, not checkpointed") as caught:
        gpusnap.restore_checkpoint("one")
    assert running(forker) == []
    assert "2 half-restored processes were killed" in caught.value.details
    assert entries() == ()


def test_what_was_forked_since_gpusnap_was_killed_is_ended(forker: Path) -> None:
    struck = Commands(Site(forker.parent / "site")).strike(
        "started:restore", "gpusnap", "restore", "one"
    )
    assert struck.hit.isdigit()
    have_it_fork(forker)
    (recovered,) = recover()
    assert recovered.outcome.startswith("half-restored processes were ended: ")
    assert running(forker) == []
    assert entries() == ()


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A job with so much on its device that the kernel joins the mapping for it with no other."""
    site = Site.make(tmp_path / "site")
    create_machine(site.machine, memory=160 << 20)
    set_variables(monkeypatch, site)
    mark = tmp_path / "job"
    start_detached([sys.executable, "-c", HOLDER, str(mark)], tmp_path / "pid", site.environment)
    await_true(mark.with_suffix(".ready").exists, "it computes")
    yield int((tmp_path / "pid").read_text())
    for pid in running(mark):
        kill(pid)


def test_the_memory_of_a_device_is_filled_in_huge_pages(
    holder: int, at_events: Callable[[Do], None]
) -> None:
    """It is advised so, whatever the machine's switch says; what the program has is not."""
    if not SWITCH.path.exists():
        pytest.skip("This kernel has no huge pages")
    snapshot = gpusnap.create_checkpoint(holder, "one", leave_running=False)
    assert isinstance(snapshot, Snapshot)
    filler = open_regions(snapshot)
    assert filler is not None
    advised: set[int] = set()

    def look(event: Event) -> None:
        if event == CriuNotified(script="post-restore"):
            smaps = Path(f"/proc/{holder}/smaps").read_text()
            found = re.findall(r"(?ms)^([0-9a-f]+)-.*?^VmFlags: (.*?)$", smaps)
            advised.update(int(start, 16) for start, flags in found if "hg" in flags.split())

    at_events(look)
    gpusnap.restore_checkpoint("one")
    device = {span.start for span in filler.spans if span.kind is Kind.DEVICE}
    assert len(device) == 1
    assert advised == device


@pytest.fixture
def strangers() -> Iterator[list[Stranger]]:
    strangers: list[Stranger] = []
    yield strangers
    for stranger in strangers:
        stranger.end()


def test_a_stranger_that_got_the_pid_is_not_saved(
    pid: int, at_events: Callable[[Do], None], strangers: list[Stranger]
) -> None:
    def replace(event: Event) -> None:
        if event == PhaseStarted(phase=Phase.DUMP, total=0) and not strangers:
            os.kill(pid, signal.SIGKILL)
            await_true(lambda: identity(pid) is None, "it is gone")
            strangers.append(Stranger(pid))

    at_events(replace)
    with pytest.raises(TargetError, match=f"Process {pid} ended, and another one has its PID"):
        gpusnap.create_checkpoint(pid, "one", leave_running=False)
    (stranger,) = strangers
    assert stranger.poll() is None, "it runs on"
    assert entries() == ()


def test_a_stranger_of_the_same_program_that_got_the_pid_is_not_killed(
    pid: int, at_events: Callable[[Do], None], strangers: list[Stranger]
) -> None:
    gpusnap.create_checkpoint(pid, "one", leave_running=False)

    def replace(event: Event) -> None:
        if event == PhaseStarted(phase=Phase.CRIU_RESTORE, total=0):
            command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
            strangers.append(Stranger(pid, *command))

    at_events(replace)
    with pytest.raises(CriuError):
        gpusnap.restore_checkpoint("one")
    (stranger,) = strangers
    assert stranger.poll() is None, "it runs on"
    assert entries() == ()
