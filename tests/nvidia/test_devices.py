from pathlib import Path

import pytest

from gpusnap.errors import NoBackendError
from gpusnap.types import DeviceProcess, EccCounts, Health
from gpusnap_nvidia import NvidiaBackend
from tests.nvidia.machine import SimulatedMachine

UUID = "GPU-01112233-4455-6677-8899-aabbccddee0{}"


def test_every_field(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    (device,) = backend.gpusnap_devices()
    assert device.index == 0
    assert device.uuid == UUID.format(0)
    assert device.vendor == "NVIDIA"
    assert device.model == "Simulated H200"
    assert device.pci == "0000:41:00.0"
    assert device.architecture == "sm_90"
    assert device.memory_total == device.memory_free == 1 << 30
    assert device.driver_version == "580.00.01"
    assert device.partitioned is False
    assert device.persistence_mode is True


def test_health(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    (device,) = backend.gpusnap_devices()
    assert device.health == Health(
        ecc_enabled=True,
        ecc=EccCounts(
            volatile_corrected=11,
            aggregate_corrected=12,
            volatile_uncorrected=21,
            aggregate_uncorrected=22,
        ),
        remapped_rows_corrected=3,
        remapped_rows_uncorrected=2,
        remap_pending=True,
        remap_failed=False,
        bad_pages=None,  # the simulated board answers that it does not support the question
        temperature_celsius=41,
    )


def test_what_the_driver_lacks_is_unknown(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    (device,) = backend.gpusnap_devices()
    assert device.firmware is None  # the simulated NVML has no such function


def test_several_devices_stand_in_the_order_of_nvml(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    machine.set(devices=3)
    devices = backend.gpusnap_devices()
    assert [device.index for device in devices] == [0, 1, 2]
    assert [device.uuid for device in devices] == [UUID.format(number) for number in range(3)]
    assert [device.pci for device in devices] == ["0000:41:00.0", "0000:42:00.0", "0000:43:00.0"]


def test_a_lost_device_is_no_shorter_list(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    machine.set(devices=2, lost_device=1)
    with pytest.raises(NoBackendError, match="a device does not answer: GPU is lost"):
        backend.gpusnap_devices()


def test_processes(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    machine.set(devices=2)
    program = machine.start_program(memory=3 << 20, device=1)
    expected = DeviceProcess(
        pid=program.pid, device_uuid=UUID.format(1), memory=3 << 20, name=_name(program.pid)
    )
    assert backend.gpusnap_processes() == (expected,)
    assert [device.memory_free for device in backend.gpusnap_devices()] == [
        1 << 30,
        (1 << 30) - (3 << 20),
    ]


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
