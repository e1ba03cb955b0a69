"""``check --restore``, and what ``inspect`` shows of the images of a vendor."""

import msgspec

from gpusnap.repository import Repository, Snapshot
from gpusnap.testing import Machine
from gpusnap.testing.backend import backend
from tests.amd import dumps
from tests.cli.conftest import Command
from tests.repository.samples import FILES, TARGET, alter, take

FREE_PID = 2**22 - 1
"""The largest that a kernel can give away: it comes last of all."""


def saved(repository: Repository, **changes: object) -> Snapshot:
    """A snapshot of a process on both devices of the machine."""
    process = msgspec.to_builtins(TARGET.processes[0])
    process["id"] = {"pid": FREE_PID, "start_ticks": 1}
    snapshot = take(repository, "one")
    alter(
        snapshot,
        target={"processes": [process]},
        backend="simulated",
        claimed=[FREE_PID],
        **changes,
    )
    return snapshot


def devices(**changes: object) -> list[object]:
    first, second = backend.gpusnap_devices()
    return [
        msgspec.to_builtins(each) for each in (first, msgspec.structs.replace(second, **changes))
    ]


def test_the_same_devices(command: Command, repository: Repository, machine: Machine) -> None:
    snapshot = saved(repository, devices=devices())
    answer = command("check", "--restore", "one", "--repo", repository.path)
    assert answer.code == 0
    assert answer.out == f"Devices for {snapshot.path}: the same\n"


def test_other_devices(command: Command, repository: Repository, machine: Machine) -> None:
    saved(repository, devices=devices(uuid="GPU-gone"))
    here = machine.description.devices[1].uuid
    answer = command("check", "--restore", "one", "--repo", repository.path, "--json")
    assert answer.code in {0, 3}  # others than before may be worth a warning
    assert answer.document["pid"] is None
    assert ["GPU-gone", here] in answer.document["restore"]["device_map"]["pairs"]


def test_devices_that_do_not_fit(
    command: Command, repository: Repository, machine: Machine
) -> None:
    saved(repository, devices=devices(model="Another Model"))
    answer = command("check", "--restore", "one", "--repo", repository.path)
    assert answer.code == 14
    assert "device-model" in answer.out
    assert answer.out.endswith(": do not fit\n")


def test_a_process_and_a_snapshot(command: Command, repository: Repository) -> None:
    command("check", "1", "--restore", "one").refused(2, "A process and a snapshot are two checks")


def test_no_such_snapshot(command: Command, repository: Repository) -> None:
    assert command("check", "--restore", "one", "--repo", repository.path).code == 10


def test_inspect_counts_buffers(command: Command, repository: Repository) -> None:
    images = {f"criu/{name}": data for name, data in dumps.new_dump().items()}
    alter(take(repository, "one", {**FILES, **images}), backend="amd", claimed=[7])
    answer = command("inspect", "one", "--repo", repository.path)
    assert answer.code == 0
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert "GPU 0x1a2b 2 vram buffers, 128 B" in lines
    document = command("inspect", "one", "--repo", repository.path, "--json").document
    assert {"device": "0x1a2b", "kind": "drm", "count": 2, "bytes": 40} in document[
        "device_buffers"
    ]


def test_inspect_where_the_backend_has_no_images(
    command: Command, repository: Repository, machine: Machine
) -> None:
    saved(repository)
    document = command("inspect", "one", "--repo", repository.path, "--json").document
    assert document["device_buffers"] == []


def test_inspect_of_damaged_images(command: Command, repository: Repository) -> None:
    images = {"criu/amdgpu-kfd-1.img": b"short"}
    alter(take(repository, "one", {**FILES, **images}), backend="amd", claimed=[7])
    assert command("inspect", "one", "--repo", repository.path).code == 12
