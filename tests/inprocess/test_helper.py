"""The helper where somebody else saves the program already."""

import os
from pathlib import Path

import pytest

from gpusnap.errors import BusyError
from gpusnap.inprocess import helper
from gpusnap.inprocess.messages import Request
from gpusnap.journal import Entry, Journal, Task
from gpusnap.mailbox import Mailbox
from gpusnap.plan import CheckpointOptions
from gpusnap.target import identity

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

    monkeypatch.setattr(helper, "run_checkpoint", checkpoint)
    found: object = helper._checkpoint_when_free(REQUEST, REQUEST.options)
    assert found == "saved"
    assert calls == [ME] * (ends_at + 1)


def test_what_stays_in_the_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()

    def checkpoint(pid: int, *_: object, **_options: object) -> None:
        calls.append(pid)
        raise BusyError("It waits to be recovered")

    monkeypatch.setattr(helper, "run_checkpoint", checkpoint)
    with pytest.raises(BusyError, match="recovered"):
        helper._checkpoint_when_free(REQUEST, REQUEST.options)
    assert len(calls) == 2
