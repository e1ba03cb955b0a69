"""``--device-map`` and ``--devices``, as they are typed and as ``check --restore`` answers."""

import msgspec
import pytest

from gpusnap.cli._parameters import parse_device_map, parse_devices
from gpusnap.repository import Repository
from gpusnap.testing import Machine
from gpusnap.testing.backend import backend
from tests.cli.conftest import Command
from tests.repository.samples import TARGET, alter, take

FREE_PID = 2**22 - 1
"""The largest that a kernel can give away: it comes last of all."""


@pytest.fixture
def saved(repository: Repository, machine: Machine) -> Repository:
    """A snapshot of a process on the first of the machine's two devices."""
    process = msgspec.to_builtins(TARGET.processes[0])
    process["id"] = {"pid": FREE_PID, "start_ticks": 1}
    devices = backend.gpusnap_devices()
    use = {"pid": FREE_PID, "device_uuid": devices[0].uuid, "memory": 4096}
    alter(
        take(repository, "one"),
        target={"processes": [process]},
        backend="simulated",
        claimed=[FREE_PID],
        devices=msgspec.to_builtins(devices),
        device_regions={"regions": [], "uses": [use]},
    )
    return repository


@pytest.mark.parametrize("option", [("--device-map", "0=1"), ("--devices", "1")])
def test_check_shows_the_whole_map(
    command: Command, saved: Repository, machine: Machine, option: tuple[str, str]
) -> None:
    answer = command("check", "--restore", "one", "--repo", saved.path, "--json", *option)
    assert answer.code == 3
    first, second = (each.uuid for each in machine.description.devices)
    plan = answer.document["restore"]
    assert plan["device_map"]["pairs"] == [[first, second], [second, first]]
    assert [each["code"] for each in answer.document["findings"]] == ["device-map-stale"]


def test_a_device_that_is_not_there(command: Command, saved: Repository) -> None:
    answer = command("check", "--restore", "one", "--repo", saved.path, "--device-map", "0=5")
    answer.refused(10, "There is no device '5' on this machine")
    answer = command("restore", "one", "--repo", saved.path, "--device-map", "0=1,0=0")
    answer.refused(2, "The device map names device 0 twice on one side")


def test_a_snapshot_without_device_state(command: Command, repository: Repository) -> None:
    alter(take(repository, "one"), backend=None, claimed=[], devices=[])
    command("check", "--restore", "one", "--repo", repository.path, "--devices", "0").refused(
        2, "The snapshot holds no device state: there is nothing to choose devices for"
    )


def test_a_choice_without_a_snapshot(command: Command) -> None:
    command("check", "--devices", "0").refused(2, "Devices are chosen for a restore")


def test_what_is_typed() -> None:
    assert parse_device_map("0=1, GPU-a = GPU-b") == (("0", "1"), ("GPU-a", "GPU-b"))
    assert parse_devices("0, GPU-a") == ("0", "GPU-a")


@pytest.mark.parametrize("typed", ["", "0", "=", "0=", "=1", "0=1=2", "0=1,", ",", "0=1,2"])
def test_maps_that_are_none(command: Command, typed: str) -> None:
    answer = command("restore", "one", "--device-map", typed)
    assert answer.code == 2
    assert "is no device map such as 0=1,1=0" in answer.err


@pytest.mark.parametrize("typed", ["", ",", "0,", ",1"])
def test_lists_that_are_none(command: Command, typed: str) -> None:
    answer = command("resume", "1", "--devices", typed)
    assert answer.code == 2
    assert "is no list of devices such as 0,1" in answer.err
