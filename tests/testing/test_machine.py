from pathlib import Path

import pytest

from gpusnap.errors import NoBackendError, UsageError
from gpusnap.plugins import Backend
from gpusnap.testing import (
    DeviceDescription,
    Machine,
    create_machine,
    current_machine,
)
from gpusnap.testing.errors import OutOfMemoryError
from gpusnap.testing.identity import own_identity
from gpusnap.testing.machine import Allocation
from gpusnap.types import ProcessId
from tests.testing.running import Program
from tests.time_namespaces import OFFSETS, run_in, skip_without

MIB = 1 << 20


def first_device(machine: Machine) -> str:
    return machine.description.devices[0].uuid


def allocation(machine: Machine, size: int, number: int = 1) -> Allocation:
    return Allocation(number=number, device_uuid=first_device(machine), size=size)


def test_devices_are_as_told(tmp_path: Path) -> None:
    devices = [DeviceDescription(uuid=name, model=f"Model {name}", memory=4096) for name in "ab"]
    machine = create_machine(tmp_path, devices=devices, driver_version="7.1")
    assert machine.description.devices == tuple(devices)
    assert machine.description.driver_version == "7.1"


def test_devices_by_number_have_different_uuids(tmp_path: Path) -> None:
    machine = create_machine(tmp_path, devices=3, memory=4096)
    assert len({device.uuid for device in machine.description.devices}) == 3
    assert {device.memory for device in machine.description.devices} == {4096}


def test_devices_can_be_exchanged(machine: Machine) -> None:
    before = machine.description
    create_machine(machine.path, devices=1)
    assert len(machine.description.devices) == 1
    assert machine.description.devices[0].uuid != before.devices[0].uuid


@pytest.mark.parametrize(
    ("devices", "sentence"),
    [
        ([DeviceDescription(uuid="a"), DeviceDescription(uuid="a")], "same UUID"),
        ([DeviceDescription(uuid="a", memory=0)], "needs memory"),
    ],
)
def test_impossible_devices(
    tmp_path: Path, devices: list[DeviceDescription], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        create_machine(tmp_path, devices=devices)


def test_no_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSNAP_SIM_DIR", raising=False)
    with pytest.raises(NoBackendError, match="GPUSNAP_SIM_DIR names no simulated machine"):
        current_machine()


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_no_machine_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "devices.json").write_text(content)
    monkeypatch.setenv("GPUSNAP_SIM_DIR", str(tmp_path))
    with pytest.raises(NoBackendError, match="simulated machine"):
        current_machine()


def test_probe_says_why(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.probe().usable
    assert backend.probe().driver_version == "1.0"
    monkeypatch.delenv("GPUSNAP_SIM_DIR")
    probe = backend.probe()
    assert not probe.usable
    assert probe.reasons == ("GPUSNAP_SIM_DIR names no simulated machine",)


def test_memory_is_accounted(machine: Machine) -> None:
    owner = own_identity()
    machine.allocate(owner, allocation(machine, 3 * MIB))
    assert machine.free(first_device(machine)) == 5 * MIB
    assert machine.free(machine.description.devices[1].uuid) == 8 * MIB
    with pytest.raises(OutOfMemoryError, match=f"{5 * MIB} bytes free, {6 * MIB} are needed"):
        machine.allocate(owner, allocation(machine, 6 * MIB, number=2))
    machine.allocate(owner, allocation(machine, 5 * MIB, number=2))
    assert machine.free(first_device(machine)) == 0
    machine.release(owner)
    assert machine.free(first_device(machine)) == 8 * MIB


def test_memory_of_the_dead_is_freed(machine: Machine) -> None:
    own = own_identity()
    earlier = ProcessId(own.pid, own.start_ticks - 100)
    path = machine.allocate(earlier, allocation(machine, MIB))
    assert path.stat().st_size == MIB
    assert machine.free(first_device(machine)) == 8 * MIB
    assert not path.exists()


LOOK = """
import sys
from pathlib import Path
from gpusnap.testing import Machine
from gpusnap.testing.identity import own_identity
from gpusnap.testing.machine import Allocation
machine = Machine(Path(sys.argv[1]))
own, device = own_identity(), machine.description.devices[0].uuid
machine.allocate(own, Allocation(number=1, device_uuid=device, size=1 << 20))
print(machine.used(device), *(each.owner.pid for each in machine.registrations()))
machine.release(own)
"""


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_restored_program_leaves_others_their_memory(
    machine: Machine, program: Program, offset: str
) -> None:
    skip_without()
    assert run_in(offset, LOOK, machine.path).split() == [str(2 * MIB), str(program.pid)]
    assert machine.used(first_device(machine)) == MIB
    program.compute()


def test_killed_program_leaves_nothing(
    machine: Machine, backend: Backend, program: Program
) -> None:
    assert machine.used(first_device(machine)) == MIB
    assert [each.pid for each in backend.processes()] == [program.pid]
    assert backend.devices()[0].memory_free == 7 * MIB
    program.kill()
    assert backend.processes() == ()
    assert backend.state(program.pids) == {}
    assert backend.devices()[0].memory_free == 8 * MIB
