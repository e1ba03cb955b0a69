"""The helper where somebody else saves the program already, or has to."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpusnap.errors import BusyError, GpusnapError, TargetError
from gpusnap.inprocess import helper, serving
from gpusnap.inprocess.messages import Request
from gpusnap.jobs.control import Control, Told, ask
from gpusnap.jobs.record import Run, write_run
from gpusnap.journal import Entry, Journal, Task
from gpusnap.mailbox import Answer, Mailbox
from gpusnap.plan import CheckpointOptions
from gpusnap.plugins import default_plugins
from gpusnap.target import identity
from gpusnap.types import ProcessId

ME = os.getpid()
REQUEST = Request(
    mailbox=Mailbox(pid=ME, address=1 << 20, length=1 << 16, nonce="0" * 32),
    options=CheckpointOptions(),
)


Calls = list[int]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path))


def of_somebody_else() -> Journal:
    myself = identity(ME)
    assert myself is not None
    return Journal.begin(
        Entry(task=Task.CHECKPOINT, owner=myself, processes=(myself,), claimed=(), backend=None)
    )


@pytest.mark.parametrize("ends_at", [1, 3])
def test_the_checkpoint_of_somebody_else_is_awaited(
    monkeypatch: pytest.MonkeyPatch, ends_at: int
) -> None:
    """Also where it ends between the refusal and the look at who refused."""
    other, calls = of_somebody_else(), Calls()

    def checkpoint(pid: int, *_: object, **_options: object) -> str:
        calls.append(pid)
        if len(calls) == ends_at:
            other.finish()
        if len(calls) <= ends_at:
            raise BusyError("Another gpusnap runs a checkpoint")
        return "saved"

    monkeypatch.setattr(serving, "run_checkpoint", checkpoint)
    found: object = serving._checkpoint_when_free(REQUEST, ME, REQUEST.options, None)
    assert found == "saved"
    assert calls == [ME] * (ends_at + 1)


def test_what_stays_in_the_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()

    def checkpoint(pid: int, *_: object, **_options: object) -> None:
        calls.append(pid)
        raise BusyError("It waits to be recovered")

    monkeypatch.setattr(serving, "run_checkpoint", checkpoint)
    with pytest.raises(BusyError, match="recovered"):
        serving._checkpoint_when_free(REQUEST, ME, REQUEST.options, None)
    assert len(calls) == 2


OF_RUN = msgspec.structs.replace(REQUEST, run="/somewhere/job")


@contextlib.contextmanager
def supervised(folder: Path, root: ProcessId | None) -> Iterator[None]:
    """Somebody supervises a run with that root, and answers once."""
    write_run(folder, Run(name=folder.name, directory="/", repository="/", root=root, boot_id=""))
    with contextlib.closing(Control(folder, default_plugins())) as control:

        def answer() -> None:
            while (serve := control.asked()) is None:
                time.sleep(0.01)
            serve()

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()
    assert not (folder / "control").exists()


def test_the_run_makes_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("a folder with a name too long for a socket" * 3)
    said = []

    def carry_out(request: Request, pid: int, _plugins: object) -> None:
        said.append((request.run, pid))
        raise GpusnapError("It is not in the mood")

    monkeypatch.setattr("gpusnap.jobs.control.carry_out", carry_out)
    with supervised(folder, identity(ME)):
        told = ask(folder, OF_RUN, lambda: None)
    assert said == [(str(folder), ME)]
    assert told is not None
    assert told.answer is not None
    assert told.answer.failure is not None
    assert told.answer.failure.text == "It is not in the mood"


def test_somebody_else_s_run_makes_none(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", None):
        assert ask(tmp_path / "job", OF_RUN, lambda: None) == Told()


@pytest.mark.parametrize(
    ("told", "words"),
    [(None, "nobody supervises the run job"), (Told(), "another copy than the job of the run job")],
)
def test_a_run_s_snapshot_that_nobody_makes(
    monkeypatch: pytest.MonkeyPatch, told: Told | None, words: str
) -> None:
    monkeypatch.setattr(helper, "ask", lambda *_: told)
    with pytest.raises(TargetError, match=words) as caught:
        helper._ask_run(OF_RUN)
    assert "checkpoint_self(path)" in str(caught.value.cure)
    monkeypatch.setenv("GPUSNAP_RUN", "/somewhere/job")
    assert helper._ask_run(REQUEST) is None, "one with a name the helper makes itself"


def test_a_path_is_the_same_for_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []

    def answer(_folder: Path, request: Request, _wanted: object) -> Told:
        asked.append(request)
        return Told(answer=Answer(outcome="saved"))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUSNAP_RUN", "/somewhere/job")
    monkeypatch.setenv("GPUSNAP_REPO", "own")
    monkeypatch.setattr(helper, "ask", answer)
    for path in ("named", "a/../b", "/c/d"):
        helper._ask_run(msgspec.structs.replace(REQUEST, output_path=path))
    assert [each.output_path for each in asked] == ["named", f"{tmp_path}/a/../b", "/c/d"]
    assert [each.repository for each in asked] == [f"{tmp_path}/own", None, None]


def test_whatever_goes_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_run(_request: Request) -> None:
        raise FileNotFoundError("The working folder is gone")

    monkeypatch.setattr(helper, "in_namespace_of_its_own", lambda _pid: True)
    monkeypatch.setattr(helper, "_ask_run", ask_run)
    failure = helper._answer(REQUEST).failure
    assert failure is not None
    assert "FileNotFoundError: The working folder is gone" in failure.text


def test_the_run_s_gpusnap_ends(tmp_path: Path) -> None:
    control = Control(tmp_path, default_plugins())
    with pytest.raises(GpusnapError, match="ended while it saved it") as caught:
        ask(tmp_path, OF_RUN, control.close)
    assert f"gpusnap run --name {tmp_path.name}" in str(caught.value.cure)


def test_a_run_that_cannot_be_read(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", None):
        (tmp_path / "job/run.json").write_text("{")
        told = ask(tmp_path / "job", OF_RUN, lambda: None)
    assert told is not None
    assert told.answer is not None
    assert told.answer.failure is not None
    assert "cannot be understood" in told.answer.failure.text


def test_nobody_supervises_the_run(tmp_path: Path) -> None:
    assert ask(tmp_path, OF_RUN, lambda: None) is None
    assert ask(tmp_path / "nowhere", OF_RUN, lambda: None) is None
