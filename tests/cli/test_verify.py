"""verify, list and inspect of snapshots with memory in packs."""

import os

import pytest

from gpusnap.repository import Repository, Snapshot
from gpusnap.repository.locks import removing_lock
from tests.cli.conftest import Command
from tests.datapath.memory import MIB, Memory
from tests.repository.samples import take_memory


@pytest.fixture
def snapshot(repository: Repository) -> Snapshot:
    return take_memory(repository, "one", Memory(os.urandom(4 * MIB)))


def damage(snapshot: Snapshot) -> None:
    with (snapshot.regions / "000.pack").open("r+b") as file:
        file.seek(4096 + MIB)
        file.write(b"damage")


def test_rate(command: Command, snapshot: Snapshot) -> None:
    answer = command("verify", snapshot.path, "--parallel-workers", 3)
    assert answer.code == 0
    assert answer.out.startswith(f"{snapshot.path} is intact (3 files, 4.2 MB, read in ")
    assert answer.out.endswith("B/s)\n")
    result = command("verify", snapshot.path, "--json").lines[-1]["result"]
    assert result["bytes"] == result["bytes_total"] == snapshot.size
    assert result["bytes_per_second"] > 0


def test_a_part_of_the_data(command: Command, snapshot: Snapshot) -> None:
    damage(snapshot)
    first = command("verify", snapshot.path, "--read-data-subset", "1/2")
    assert first.code == 0
    assert (
        f"{snapshot.path} is intact as far as it was read (3 files, 2.1 MB of 4.2 MB" in first.out
    )
    second = command("verify", snapshot.path, "--read-data-subset", "2/2", "--json")
    assert second.code == 12
    result = second.lines[-1]["result"]
    assert result["bytes"] < result["bytes_total"] == snapshot.size
    some = command("verify", snapshot.path, "--read-data-subset", "75%", "--json").lines[-1]
    assert 3 * MIB < some["result"]["bytes"] < 4 * MIB


def test_damage_is_named(command: Command, snapshot: Snapshot) -> None:
    damage(snapshot)
    answer = command("verify", snapshot.path)
    assert answer.code == 12
    position = 4096 + MIB
    assert f"File regions/000.pack is damaged in the chunk at {position} (process " in answer.out


def test_a_snapshot_that_is_being_removed(command: Command, snapshot: Snapshot) -> None:
    with removing_lock(snapshot.path / "manifest.json"):
        answer = command("verify", snapshot.path)
    answer.refused(11, "one is being removed")


@pytest.mark.parametrize("subset", ["0%", "1/0", "most"])
def test_no_part(command: Command, snapshot: Snapshot, subset: str) -> None:
    answer = command("verify", snapshot.path, "--read-data-subset", subset)
    answer.refused(2, f"'{subset}' is no part of the data")


def test_what_a_child_has_of_its_own(command: Command, repository: Repository) -> None:
    memory = Memory(os.urandom(4 * MIB))
    parent = take_memory(repository, "one", memory)
    memory.change(0, b"other")
    child = take_memory(repository, "two", memory, parent)
    rows = command("list", "--repo", repository.path, "--json").document["snapshots"]
    assert [row["parent"] for row in rows] == [None, parent.manifest.id]
    assert [row["stored_bytes"] for row in rows] == [parent.size, child.stored_size]
    inspected = command("inspect", child.path, "--json").document
    assert inspected["stored_bytes"] == child.stored_size < 2 * MIB
    assert "parent" in command("inspect", child.path).out
