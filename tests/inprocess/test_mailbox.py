"""The mailbox: what may be written where, and what a program reads."""

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpusnap.errors import (
    CriuError,
    DeviceError,
    GpusnapError,
    IncompatibleError,
    IntegrityError,
    TargetError,
    UsageError,
)
from gpusnap.inprocess import helper
from gpusnap.inprocess.answers import check_overrides, require_listener, restored, saved
from gpusnap.inprocess.box import Box
from gpusnap.mailbox import (
    MAILBOX_LENGTH,
    Answer,
    Failure,
    Mailbox,
    MailboxState,
    encode_answer,
    read_state,
    write_answer,
)
from gpusnap.native import MemoryFault, read_process
from gpusnap.repository import NameTakenError, Repository, Snapshot
from gpusnap.restore import RestoreOptions, plan_restore
from gpusnap.types import Device, DeviceImage, DeviceMap, DeviceState, DeviceUse
from tests.repository.samples import manifest, take

SAVED = Answer(outcome="saved", path="/a/b", devices=("one", "two"))


def content(mailbox: Mailbox) -> bytes:
    data = bytearray(MAILBOX_LENGTH)
    read_process(os.getpid(), mailbox.address, data, checksum=False)
    return bytes(data)


def test_an_answer_arrives_once() -> None:
    box = Box()
    mailbox = box.ask()
    assert mailbox.pid == os.getpid()
    assert box.read() is None
    write_answer(os.getpid(), mailbox, SAVED)
    assert box.read() == SAVED
    box.close()
    assert box.read() is None


def test_the_helper_waits_until_the_program_does() -> None:
    box = Box()
    mailbox = box.ask()
    assert read_state(os.getpid(), mailbox) is MailboxState.ASKING
    timer = threading.Timer(0.05, box.wait)
    timer.start()
    assert helper._is_wanted(mailbox)
    timer.join()
    box.close()
    assert not helper._is_wanted(mailbox)
    box.ask()
    with pytest.raises(IntegrityError, match="something else is there"):
        helper._is_wanted(mailbox)


def test_nobody_waits_for_an_earlier_answer() -> None:
    box = Box()
    earlier, now = box.ask(), box.ask()
    before = content(now)
    with pytest.raises(IntegrityError, match="no mailbox"):
        write_answer(os.getpid(), earlier, SAVED)
    assert content(now) == before
    write_answer(os.getpid(), now, SAVED)
    assert box.read() == SAVED


def test_a_snapshot_of_one_that_gave_up_can_be_answered() -> None:
    box = Box()
    mailbox = box.ask()
    box.close()
    write_answer(os.getpid(), mailbox, SAVED)
    box.ask()
    assert box.read() is None


@pytest.mark.parametrize("change", [{"address": 4096}, {"nonce": "0" * 32}])
def test_a_mailbox_that_is_none(change: dict[str, Any]) -> None:
    mailbox = msgspec.structs.replace(Box().ask(), **change)
    with pytest.raises(IntegrityError, match="has no mailbox at"):
        write_answer(os.getpid(), mailbox, SAVED)


def test_an_answer_that_does_not_fit() -> None:
    box = Box()
    mailbox = msgspec.structs.replace(box.ask(), length=100)
    with pytest.raises(IntegrityError, match="does not fit"):
        write_answer(os.getpid(), mailbox, SAVED)
    assert box.read() is None


def test_long_details_are_left_out() -> None:
    failure = Failure.of(CriuError("It failed", cure="Try", details=["x" * MAILBOX_LENGTH]))
    data = encode_answer(Answer(outcome="failed", failure=failure))
    assert b"It failed" in data
    assert b"xx" not in data


def test_a_failure_is_told_whatever_its_text_is() -> None:
    error = TargetError("\udcff" * MAILBOX_LENGTH, cure="\x01" * MAILBOX_LENGTH)
    data = encode_answer(Answer(outcome="failed", failure=Failure.of(error)))
    failure = msgspec.json.decode(data, type=Answer).failure
    assert failure is not None
    assert failure.error().text.startswith("\\udcff")


@pytest.mark.parametrize(
    "error",
    [
        GpusnapError("It failed"),
        CriuError("It failed", cure="Try again", details=["a", "b"]),
        DeviceError("No", pid=3, state=DeviceState.LOCKED, cure="Wait", details=["c"]),
        NameTakenError("There is one"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_stays_what_it_was(error: GpusnapError) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(Failure.of(error)), type=Failure).error()
    assert type(sent) is type(error)
    assert vars(sent) == vars(error)


def test_an_error_of_another_module_becomes_the_nearest_one() -> None:
    sent = Failure.of(MemoryFault(7, 4096, "nothing is mapped there")).error()
    assert type(sent) is TargetError
    assert sent.text == "Memory of process 7 cannot be used at 0x1000: nothing is mapped there"


@pytest.mark.parametrize(
    "change",
    [
        {"pid": 0},
        {"address": -1},
        {"address": 1 << 60},
        {"length": 8},
        {"length": 1 << 30},
        {"nonce": "0"},
        {"nonce": "G" * 32},
    ],
    ids=str,
)
def test_a_manifest_with_a_mailbox_that_no_program_has(change: dict[str, Any]) -> None:
    good = {"pid": 7, "address": 4096, "length": MAILBOX_LENGTH, "nonce": "0" * 32}
    msgspec.convert(good, Mailbox)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**good, **change}, Mailbox)


def test_a_manifest_with_the_mailbox_of_a_stranger() -> None:
    mailbox = Mailbox(pid=7, address=4096, length=MAILBOX_LENGTH, nonce="0" * 32)
    good = msgspec.structs.replace(manifest("one"), mailbox=mailbox)
    strange = msgspec.structs.replace(mailbox, pid=8)
    with pytest.raises(ValueError, match="process 8 waits but is no part of the target"):
        msgspec.structs.replace(good, mailbox=strange)


def test_devices_of_an_answer() -> None:
    devices = [Device(index=at, uuid=f"d{at}", vendor="v", model="m") for at in range(3)]
    uses = [DeviceUse(pid=7, device_uuid=uuid, memory=1) for uuid in ("d2", "d0", "d2")]
    snapshot = Snapshot(
        Path("/repo/one"),
        msgspec.structs.replace(
            manifest("one"),
            devices=tuple(devices),
            device_regions=DeviceImage(regions=(), uses=tuple(uses)),
        ),
    )
    assert saved(snapshot) == Answer(outcome="saved", path="/repo/one", devices=("d0", "d2"))
    moved = restored(snapshot, DeviceMap(pairs=(("d0", "d1"), ("d2", "d2"))), {"lr": "1"})
    assert (moved.devices, moved.overrides) == (("d1", "d2"), {"lr": "1"})


@pytest.mark.parametrize(
    "overrides", [{"": "a"}, {"lr": 1}, {3: "a"}, {"a": "x" * MAILBOX_LENGTH}, {"a": "\udc80"}]
)
def test_overrides_that_cannot_be_handed_over(overrides: dict[Any, Any]) -> None:
    with pytest.raises(UsageError):
        check_overrides(overrides)


def test_overrides_that_nobody_would_read(tmp_path: Path) -> None:
    snapshot = take(Repository.create(tmp_path / "repository"), "outside")
    require_listener(snapshot, {})
    with pytest.raises(IncompatibleError, match="outside was made from outside") as refused:
        plan_restore(snapshot.path, options=RestoreOptions(overrides={"lr": "1"}))
    assert "checkpoint_self" in str(refused.value.cure)
