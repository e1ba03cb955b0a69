"""Dumps by the real CRIU: what the target does meanwhile and afterwards."""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gpusnap.criu import Criu, Session, inventory_plugins
from gpusnap.criu.images import tree_pids
from gpusnap.errors import CriuError, DeadlineError, UsageError
from gpusnap.target import is_zombie
from gpusnap.types import CriuOptions
from tests.criu.conftest import Clock, agree, dump_request
from tests.criu.counters import Counter
from tests.descriptors import none_left_open

pytestmark = pytest.mark.usefixtures("root")

STAGES = ("pre-dump", "query-ext-files", "post-dump")


def test_a_dump_leaves_the_target_running(criu: Criu, counter: Counter) -> None:
    Session(criu).dump(dump_request(counter), agree)
    assert counter.computes()
    assert (counter.work / "dump.log").stat().st_size > 0
    assert inventory_plugins(counter.images) == ()
    assert tree_pids(counter.images) == (counter.pid,)


def test_a_dump_ends_the_target_when_asked_to(criu: Criu, counter: Counter) -> None:
    Session(criu).dump(dump_request(counter, leave_running=False), agree)
    assert counter.process.wait(60) == -signal.SIGKILL


def test_stages_come_in_order_and_the_last_finds_the_target_frozen(
    criu: Criu, counter: Counter
) -> None:
    seen: list[tuple[str, bool]] = []

    def notify(script: str, pid: int | None) -> bool:
        assert pid is None
        seen.append((script, not counter.computes() if script == "pre-dump" else counter.stands()))
        return True

    Session(criu).dump(dump_request(counter), notify)
    assert seen == [("pre-dump", False), ("query-ext-files", True), ("post-dump", True)]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("leave_running", [True, False])
def test_a_refused_stage_leaves_the_target_running(
    criu: Criu, counter: Counter, stage: str, leave_running: bool
) -> None:
    request = dump_request(counter, leave_running=leave_running)
    with pytest.raises(CriuError, match=f"told to stop at its stage '{stage}'"):
        Session(criu).dump(request, lambda script, _pid: script != stage)
    assert counter.computes()


@pytest.mark.parametrize("stage", STAGES)
def test_an_exception_comes_back_once_criu_has_ended(
    criu: Criu, counter: Counter, stage: str
) -> None:
    class OwnError(Exception):
        pass

    error = OwnError(stage)
    asked: list[str] = []

    def notify(script: str, _pid: int | None) -> bool:
        asked.append(script)
        if script == stage:
            raise error
        return True

    session = Session(criu)
    with pytest.raises(OwnError) as caught:
        session.dump(dump_request(counter, leave_running=False), notify)
    assert caught.value is error
    assert asked[-1] == stage
    assert not Path(f"/proc/{session.pid}").exists()
    assert counter.computes()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_criu_killed_at_a_stage_leaves_the_target_running(
    criu: Criu, counter: Counter, stage: str, number: signal.Signals
) -> None:
    session = Session(criu)

    def notify(script: str, _pid: int | None) -> bool:
        if script == stage:
            os.kill(session.pid, number)
            time.sleep(0.05)
        return True

    with pytest.raises(CriuError, match=rf"killed by signal {number:d} .* stage '{stage}'"):
        session.dump(dump_request(counter, leave_running=False), notify)
    assert counter.computes()


@pytest.mark.slow
def test_criu_killed_at_random_moments(criu: Criu, start: Callable[..., Counter]) -> None:
    """CRIU plants a breakpoint in the target for an instant; a kill just then is its end.

    Measured: 1 to 6 of 100 kills between the first notification and the last, the more the
    busier the machine. Any other end of the target, or one that stands still, is a fault.
    """
    counter, lost = start(), 0
    for _ in range(20):
        _kill_criu_after(random.uniform(0, 0.06), criu, counter)
        if counter.computes():
            continue
        assert counter.process.wait(60) == -signal.SIGTRAP
        lost += 1
        counter = start()
    assert lost <= 10


def _kill_criu_after(seconds: float, criu: Criu, counter: Counter) -> None:
    session = Session(criu)

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.kill(session.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, kill)

    def notify(script: str, _pid: int | None) -> bool:
        if script == "pre-dump":
            timer.start()
        return script != "post-dump"

    with pytest.raises(CriuError, match=r"killed by signal 9|told to stop"):
        session.dump(dump_request(counter, leave_running=False), notify)
    timer.cancel()
    timer.join()


def test_criu_killed_while_it_starts_leaves_no_process_of_its_own(
    criu: Criu, counter: Counter
) -> None:
    """It tries the kernel on children of its own, which would stay, stopped, for ever."""
    for attempt in range(20):
        session = _kill_criu_at_start(0.003 * attempt, criu, counter)
        assert not _members(session)
        assert counter.computes()


def _kill_criu_at_start(seconds: float, criu: Criu, counter: Counter) -> int:
    timers: list[threading.Timer] = []

    def kill_soon(pid: int) -> None:
        timers.append(threading.Timer(seconds, os.kill, (pid, signal.SIGKILL)))
        timers[0].start()

    def wait_to_be_killed(_script: str, _pid: int | None) -> bool:
        timers[0].join()
        return True

    session = Session(criu, kill_soon)
    with pytest.raises(CriuError, match=r"killed by signal 9"):
        session.dump(dump_request(counter), wait_to_be_killed)
    return session.pid


def _members(session: int) -> list[int]:
    members = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == session and not is_zombie(pid):
                members.append(pid)
    return members


def _dump_and_die(criu: Criu, counter: Counter, stage: str) -> None:
    def notify(script: str, _pid: int | None) -> bool:
        if script == stage:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    Session(criu).dump(dump_request(counter, leave_running=False), notify)


@pytest.mark.parametrize("stage", STAGES)
def test_a_client_that_dies_leaves_the_target_running(
    criu: Criu, counter: Counter, stage: str
) -> None:
    context = multiprocessing.get_context("fork")
    client = context.Process(target=_dump_and_die, args=(criu, counter, stage))
    client.start()
    client.join(60)
    assert client.exitcode == -signal.SIGKILL
    assert counter.computes()


def test_a_criu_that_hangs_is_stopped_and_the_target_runs_on(
    criu: Criu, counter: Counter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpusnap.criu.service.UNDO_SECONDS", 0.5)
    session = Session(criu)

    def notify(script: str, _pid: int | None) -> bool:
        if script == "post-dump":
            os.kill(session.pid, signal.SIGSTOP)
            clock.jump(0.5)
        return True

    with pytest.raises(DeadlineError, match=r"did not end within 60 s .* stage 'post-dump'"):
        session.dump(dump_request(counter), notify)
    assert not Path(f"/proc/{session.pid}").exists()
    assert counter.computes()


def test_the_time_of_a_notification_is_not_criu_s(
    criu: Criu, counter: Counter, clock: Clock
) -> None:
    def slow(script: str, _pid: int | None) -> bool:
        if script == "post-dump":
            clock.jump(0)
        return True

    Session(criu).dump(dump_request(counter), slow)
    assert counter.computes()


def test_nothing_leaks(criu: Criu, counter: Counter) -> None:
    children = {child.pid for child in psutil.Process().children()}
    with none_left_open():
        for agreed in (True, False):
            with suppress(CriuError):
                Session(criu).dump(dump_request(counter), lambda *_, agreed=agreed: agreed)
    assert {child.pid for child in psutil.Process().children()} <= children


def test_the_pid_is_told_before_criu_is_asked(criu: Criu, counter: Counter) -> None:
    order: list[object] = []
    session = Session(criu, order.append)
    with pytest.raises(UsageError, match="not been started"):
        _ = session.pid

    def notify(script: str, _pid: int | None) -> bool:
        order.append(script)
        return True

    session.dump(dump_request(counter), notify)
    assert order == [session.pid, *STAGES]


def test_relative_folders(criu: Criu, counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(counter.folder)
    request = dump_request(counter, images=Path("images"), work=Path("work"))
    Session(criu).dump(request, agree)
    assert inventory_plugins(counter.images) == ()
    assert (counter.work / "dump.log").exists()


def test_a_missing_folder_is_named(criu: Criu, counter: Counter) -> None:
    request = dump_request(counter, images=counter.folder / "nowhere")
    with pytest.raises(CriuError, match="nowhere cannot be opened: No such file"):
        Session(criu).dump(request, agree)


def test_a_criu_that_cannot_be_started(criu: Criu, counter: Counter) -> None:
    broken = Criu(command=("/nowhere/criu",), version=(4, 1, 1), source="path", path="/nowhere")
    with pytest.raises(CriuError, match=r"cannot be started: .*No such file"):
        Session(broken).dump(dump_request(counter), agree)


def test_a_criu_that_answers_nonsense(counter: Counter, tmp_path: Path) -> None:
    script = tmp_path / "criu"
    script.write_text(
        f"#!{sys.executable} -SE\nimport os, sys\nasked = int(sys.argv[-1])\n"
        # What is never read resets the connection once it ends, and the answer may be lost
        "os.read(asked, 1 << 16)\nos.write(asked, b'nonsense')\n"
    )
    script.chmod(0o755)
    odd = Criu(command=(str(script),), version=(4, 1, 1), source="path", path=str(script))
    with pytest.raises(CriuError, match="not of its protocol"):
        Session(odd).dump(dump_request(counter), agree)
    assert counter.computes()


def test_a_criu_that_ends_without_an_answer(counter: Counter) -> None:
    mute = Criu(command=("/bin/true",), version=(4, 1, 1), source="path", path="/bin/true")
    with pytest.raises(CriuError, match="failed without saying why"):
        Session(mute).dump(dump_request(counter), agree)


def test_plugins_of_the_machine_take_no_part(
    criu: Criu, counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = tmp_path / "plugins"
    stray.mkdir()
    (stray / "stray_plugin.so").write_bytes(b"not a library")
    monkeypatch.setenv("CRIU_LIBS_DIR", str(stray))
    Session(criu).dump(dump_request(counter), agree)
    named = CriuOptions(plugin_directory=str(stray))
    with pytest.raises(CriuError, match="could not load one of its plugins"):
        Session(criu).dump(dump_request(counter, options=named), agree)


def test_settings_of_the_machine_take_no_part(
    criu: Criu, counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / ".criu"
    own.mkdir()
    (own / "default.conf").write_text("no-such-option\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CRIU_CONFIG_FILE", str(own / "default.conf"))
    Session(criu).dump(dump_request(counter), agree)
    assert counter.computes()
