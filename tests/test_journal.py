import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusnap.errors import BusyError, GpusnapError
from gpusnap.events import Phase
from gpusnap.journal import Entry, Journal, Task, entries, file_name, unreadable
from gpusnap.recovery import recover
from gpusnap.target import identity, myself
from gpusnap.types import ProcessId


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def entry(*pids: int, task: Task = Task.CHECKPOINT) -> Entry:
    own = identity(os.getpid())
    assert own is not None
    processes = tuple(ProcessId(pid, own.start_ticks) for pid in pids or (os.getpid(),))
    return Entry(task=task, owner=myself(), processes=processes, claimed=(), backend=None)


def test_what_is_written_is_read() -> None:
    journal = Journal.begin(entry())
    journal.update(phase=Phase.DUMP, path="/somewhere")
    ((found, held),) = entries()
    assert held
    assert found.phase is Phase.DUMP
    assert found.path == "/somewhere"
    journal.finish()
    assert entries() == ()


def test_two_operations_on_one_target() -> None:
    journal = Journal.begin(entry())
    with pytest.raises(BusyError, match=r"Another gpusnap .* runs a checkpoint"):
        Journal.begin(entry())
    journal.finish()
    Journal.begin(entry()).finish()


def test_a_journal_keeps_its_name_whatever_processes_come_to_it() -> None:
    journal = Journal.begin(entry(os.getpid()))
    journal.update(processes=entry(os.getpid(), 1).processes)
    journal.leave()
    ((found, _held),) = entries()
    taken = Journal.take_over(found)
    assert taken is not None
    taken.finish()
    assert entries() == ()


def test_trees_that_share_a_process() -> None:
    journal = Journal.begin(entry(os.getppid(), os.getpid()))
    with pytest.raises(BusyError):
        Journal.begin(entry(os.getpid()))
    journal.finish()


def test_one_that_was_interrupted_has_to_be_recovered() -> None:
    Journal.begin(entry()).leave()
    with pytest.raises(BusyError, match="was interrupted") as caught:
        Journal.begin(entry())
    assert caught.value.cure == "Run gpusnap recover first"
    ((found, held),) = entries()
    assert not held
    journal = Journal.take_over(found)
    assert journal is not None
    journal.finish()


def test_a_suspended_target_has_to_be_resumed() -> None:
    journal = Journal.begin(entry(task=Task.SUSPEND))
    journal.update(suspended=True)
    journal.leave()
    with pytest.raises(BusyError, match="is suspended"):
        Journal.begin(entry())


def test_an_interrupted_one_of_a_target_that_is_gone_is_no_obstacle() -> None:
    old = ProcessId(os.getpid(), 1)
    Journal.begin(
        Entry(task=Task.CHECKPOINT, owner=myself(), processes=(old,), claimed=(), backend=None)
    ).leave()
    Journal.begin(entry()).finish()


def test_only_one_takes_over() -> None:
    Journal.begin(entry()).leave()
    ((found, _),) = entries()
    first = Journal.take_over(found)
    assert first is not None
    assert Journal.take_over(found) is None
    first.finish()
    assert Journal.take_over(found) is None


def test_the_death_of_the_owner_frees_it(state: Path) -> None:
    script = (
        "import os; from tests.test_journal import entry; from gpusnap.journal import Journal\n"
        "journal = Journal.begin(entry(os.getppid())); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    ((_, held),) = entries()
    assert not held


@pytest.mark.usefixtures("root", "state")
def test_another_pid_namespace_has_journals_of_its_own() -> None:
    Journal.begin(entry()).leave()
    script = "from gpusnap.journal import entries; print(len(entries()))"
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    for within, seen in (([], "1\n"), (unshare, "0\n")):
        command = [*within, sys.executable, "-c", script]
        assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == seen


@pytest.mark.parametrize("text", ["{", "", '{"processes":[]}'])
def test_a_damaged_journal_is_told(state: Path, text: str) -> None:
    Journal.begin(entry()).leave()
    path = state / file_name(os.getpid())
    path.write_text(text)
    assert entries() == ()
    assert unreadable() == (path,)
    with pytest.raises(BusyError, match="cannot be read"):
        Journal.begin(entry())
    (told,) = recover()
    assert told.failed
    assert told.pids == (os.getpid(),)
    assert str(path) in told.outcome


def test_a_journal_of_a_newer_gpusnap_is_read(state: Path) -> None:
    Journal.begin(entry()).leave()
    path = state / file_name(os.getpid())
    path.write_text(path.read_text().replace("{", '{"news":1,', 1))
    assert len(entries()) == 1


def test_what_cannot_be_begun_holds_nothing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: Journal) -> None:
        raise GpusnapError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write", fail)
        with pytest.raises(GpusnapError, match="no space"):
            Journal.begin(entry())
    Journal.begin(entry()).finish()


def test_paths_that_are_no_text() -> None:
    journal = Journal.begin(entry())
    journal.update(path="/d\udce9x", work="/t\udce9", executables=("/d\udce9x/p",))
    ((found, _),) = entries()
    assert (found.path, found.work) == ("/d\\udce9x", "/t\\udce9")
    journal.finish()


@pytest.mark.parametrize("name", ["lock", Path(file_name(os.getpid())).with_suffix(".lock")])
def test_a_folder_where_a_lock_should_be(state: Path, name: str) -> None:
    (state / name).mkdir(parents=True)
    with pytest.raises(GpusnapError, match="cannot be used"):
        Journal.begin(entry())


def test_a_state_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(GpusnapError, match="cannot be used"):
        Journal.begin(entry())


def test_one_that_cannot_be_removed_is_let_go_of(state: Path) -> None:
    journal = Journal.begin(entry())
    state.rename(state.with_name("moved"))
    state.touch()
    with pytest.raises(GpusnapError, match="cannot be used"):
        journal.finish()
    state.unlink()
    state.with_name("moved").rename(state)
    ((_found, held),) = entries()
    assert not held


def test_an_interrupt_as_it_begins_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_journal: Journal) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            Journal.begin(entry())
    Journal.begin(entry()).finish()
    assert entries() == ()
