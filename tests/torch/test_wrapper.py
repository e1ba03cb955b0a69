import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

import gpusnap.torch
from gpusnap.errors import BusyError, IntegrityError, NotFoundError, TargetError, UsageError
from gpusnap.inprocess.itself import Checkpointed
from gpusnap.repository import Repository
from gpusnap.torch import CheckpointWrapper, optimizer_memory, wrapper
from tests.repository.samples import alter, take

Calls = list[dict[str, Any]]


class Replaced(BaseException):
    """The process runs another program."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What checkpoint_self was asked, which makes a snapshot of nobody."""
    calls: Calls = []

    def checkpoint_self(place: Path, **options: object) -> Checkpointed:
        calls.append({"place": place, **options})
        snapshot = take(Repository.create(place.parent), place.name)
        return Checkpointed(outcome="saved", snapshot=place.name, path=snapshot.path)

    monkeypatch.setattr(wrapper, "checkpoint_self", checkpoint_self)
    return calls


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this process would have become."""
    command: list[str] = []

    def execv(_path: str, arguments: list[str]) -> None:
        command.extend(arguments)
        raise Replaced

    monkeypatch.setattr(os, "execv", execv)
    return command


@pytest.fixture
def training(tmp_path: Path) -> CheckpointWrapper:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return CheckpointWrapper(model, optimizer, checkpoint_dir=tmp_path / "snapshots")


def identifier(path: Path) -> str:
    return Repository.open(path.parent).find(path.name).manifest.id


def test_an_epoch_is_saved_optimizer_first(training: CheckpointWrapper, calls: Calls) -> None:
    result = training.save(3)
    path = training.checkpoint_dir / "epoch_3.ckpt"
    assert (result.saved, result.path, result.snapshot) == (True, path, path.name)
    (asked,) = calls
    assert asked["first"] == optimizer_memory(training.optimizer)
    assert len(asked["first"]) == 6
    assert training.epochs() == (3,)


def test_options_are_passed_on(tmp_path: Path, calls: Calls) -> None:
    options: dict[str, Any] = {
        "gpu_sync": True,
        "compress": False,
        "incremental": True,
        "parallel_workers": 3,
        "tags": ("nightly",),
    }
    CheckpointWrapper(checkpoint_dir=tmp_path / "folder", **options).save(0)
    assert calls == [{"place": tmp_path / "folder/epoch_0.ckpt", "first": (), **options}]


def test_several_optimizers(training: CheckpointWrapper, calls: Calls) -> None:
    one = training.optimizer
    several = CheckpointWrapper(None, [one, one], checkpoint_dir=training.checkpoint_dir)
    several.save(0)
    assert calls[0]["first"] == optimizer_memory(one)


def test_the_same_epoch_again_replaces_it(training: CheckpointWrapper, calls: Calls) -> None:
    first = identifier(training.save(1).path)
    result = training.save(1)
    assert result.path == training.checkpoint_dir / "epoch_1.ckpt"
    assert result.snapshot == "epoch_1.ckpt"
    assert identifier(result.path) != first
    assert [each.name for each in Repository.open(training.checkpoint_dir).snapshots()] == [
        "epoch_1.ckpt"
    ]


def test_a_damaged_one_is_replaced_too(training: CheckpointWrapper, calls: Calls) -> None:
    path = training.save(1).path
    (path / "manifest.json").write_text("{}")
    assert identifier(training.save(1).path)


def test_one_that_is_read_stays_and_so_does_the_new(
    training: CheckpointWrapper, calls: Calls
) -> None:
    path = training.save(1).path
    snapshot = Repository.open(path.parent).find(path.name)
    with snapshot.hold(), pytest.raises(BusyError):
        training.save(1)
    assert identifier(path) == snapshot.manifest.id
    assert identifier(path.with_name("epoch_1.new.ckpt")) != snapshot.manifest.id
    training.save(1)
    assert not path.with_name("epoch_1.new.ckpt").exists()


def test_a_restored_process_moves_nothing(
    training: CheckpointWrapper, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = training.save(1).path
    back = Checkpointed(outcome="restored", snapshot="elsewhere", path=Path("/elsewhere"))
    monkeypatch.setattr(wrapper, "checkpoint_self", lambda *_, **__: back)
    assert training.save(1) == back
    assert path.exists()


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", None])
def test_no_epoch(training: CheckpointWrapper, calls: Calls, epoch: Any) -> None:
    with pytest.raises(UsageError, match="is no epoch"):
        training.save(epoch)
    assert not calls


def test_one_of_several_ranks_is_refused(
    training: CheckpointWrapper, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = torch.distributed
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    for call in (training.save, training.load):
        with pytest.raises(TargetError, match="one of 2 that train together"):
            call(0)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 1)
    assert training.save(0).saved


def test_an_epoch_that_was_not_saved(training: CheckpointWrapper, calls: Calls) -> None:
    with pytest.raises(NotFoundError, match="no snapshot of an epoch"):
        training.load()
    with pytest.raises(NotFoundError) as raised:
        training.load(4)
    assert raised.value.cure == "Choose one of those that were: there is none"
    for epoch in (10, 2):
        training.save(epoch)
    with pytest.raises(NotFoundError) as raised:
        training.load(4)
    assert raised.value.text == f"Epoch 4 was not saved in {training.checkpoint_dir}"
    assert raised.value.cure == "Choose one of those that were: 2, 10"


def test_a_damaged_one_is_not_loaded(
    training: CheckpointWrapper, calls: Calls, command: list[str]
) -> None:
    (training.save(1).path / "manifest.json").write_text("{}")
    with pytest.raises(IntegrityError):
        training.load(1)
    assert not command


def test_the_last_epoch_takes_this_process_over(
    training: CheckpointWrapper, calls: Calls, command: list[str]
) -> None:
    for epoch in (9, 10):
        path = training.save(epoch).path
    process = {"id": {"pid": 2**22 - 1, "start_ticks": 1}}
    alter(Repository.open(path.parent).find(path.name), target=target(process))
    with pytest.raises(Replaced):
        training.load()
    restoring = ["-P", "-m", "gpusnap", "restore", str(path), "--wait"]
    assert command == [sys.executable, *restoring]


def target(process: dict[str, Any]) -> dict[str, Any]:
    rest = {"parent_pid": 1, "session_id": 1, "command": ["train"], "name": "train"}
    return {"processes": [{**rest, **process}]}


@pytest.mark.parametrize(("original", "new"), [(None, True), (True, False), (False, True)], ids=str)
def test_a_pid_that_is_taken(
    training: CheckpointWrapper, calls: Calls, command: list[str], original: bool, new: bool
) -> None:
    path = training.save(0).path
    process = {"id": {"pid": os.getpid(), "start_ticks": 1}}
    alter(Repository.open(path.parent).find(path.name), target=target(process))
    with pytest.raises(Replaced):
        training.load(0, restore_to_original_pid=original)
    assert ("--new-pids" in command) is new


def test_workers_do_not_outlive_the_process(
    training: CheckpointWrapper, calls: Calls, command: list[str]
) -> None:
    training.save(0)
    spawning = multiprocessing.get_context("spawn")
    worker = spawning.Process(target=time.sleep, args=(600,), daemon=True)
    worker.start()
    with pytest.raises(Replaced):
        training.load(0)
    worker.join(60)
    assert worker.exitcode == -15


@pytest.mark.parametrize("name", ["create_checkpoint", "restore_checkpoint"])
def test_the_functions_are_gpusnaps_own(name: str) -> None:
    of_torch: Callable[..., object] = getattr(gpusnap.torch, name)
    assert of_torch is getattr(gpusnap, name)
