"""Machines that others captured are read right."""

import platform

import msgspec
import pytest

from gpusnap.types import Device, Health
from gpusnap_amd import AmdBackend
from tests.amd.captured import NAMES, lay_out
from tests.amd.invented import Machine

GIB = 1 << 30
COUNTS = {
    "mi210": 8,
    "mi300x-cpx": 63,
    "mi308x-cpx": 32,
    "phoenix": 1,
    "strixpoint": 1,
    "vangogh": 1,
    "vega10": 2,
}


def devices_of(machine: Machine, name: str) -> tuple[Device, ...]:
    """The devices but for their topology, which says more than is captured here."""
    lay_out(machine, name)
    devices = AmdBackend(machine.sysfs, machine.proc).gpusnap_devices()
    return tuple(msgspec.structs.replace(device, topology=None) for device in devices)


@pytest.mark.parametrize("name", NAMES)
def test_every_gpu_is_a_device(machine: Machine, name: str) -> None:
    devices = devices_of(machine, name)
    assert len(devices) == COUNTS[name]
    assert [device.index for device in devices] == [*range(COUNTS[name])]
    assert len({device.uuid for device in devices}) == COUNTS[name]
    probe = AmdBackend(machine.sysfs, machine.proc).gpusnap_probe()
    assert (probe.usable, probe.reasons) == (True, ())


def test_partitions_of_mi308x(machine: Machine) -> None:
    devices = devices_of(machine, "mi308x-cpx")
    assert devices[1] == Device(
        index=1,
        uuid="GPU-084cafeae17e7696-1",
        vendor="AMD",
        model="AMD 0x74a2",
        pci="0000:0a:00.0",
        architecture="gfx942",
        memory_total=48 * GIB,
        memory_free=48 * GIB - 2907979776,
        driver_version=f"Linux {platform.release()}",
        firmware="mec 149, sdma 19",
        partitioned=True,
        health=Health(ecc_enabled=True),
    )
    boards = [device.pci for device in devices]
    assert boards == [board for board in dict.fromkeys(boards) for _ in range(4)]
    assert boards[-1] == "0001:c9:00.0"
    assert [device.uuid[-2:] for device in devices] == ["-0", "-1", "-2", "-3"] * 8


def test_partitions_of_mi300x(machine: Machine) -> None:
    devices = devices_of(machine, "mi300x-cpx")
    assert {device.architecture for device in devices} == {"gfx942"}
    assert all(device.partitioned for device in devices)
    assert len({device.pci for device in devices}) == 8
    assert [device.uuid[-1] for device in devices] == [*"01234567" * 8][:-1]


def test_whole_gpus_of_mi210(machine: Machine) -> None:
    devices = devices_of(machine, "mi210")
    assert [(device.pci, device.partitioned) for device in devices[:2]] == [
        ("0000:63:00.0", None),
        ("0000:43:00.0", None),
    ]
    assert {(device.architecture, device.memory_total) for device in devices} == {("gfx90a", None)}


def test_old_kernel_tells_no_architecture(machine: Machine) -> None:
    device = devices_of(machine, "vega10")[0]
    assert (device.architecture, device.pci) == (None, "0000:19:00.0")
    assert (device.memory_total, device.memory_free) == (17163091968, 17163091968 - 14102528)
    assert device.health.ecc_enabled is False


def test_apu_borrows_from_the_host(machine: Machine) -> None:
    """KFD gives it 31 GB, of which the driver's own 4 GB of video memory are a part."""
    (device,) = devices_of(machine, "phoenix")
    assert device == Device(
        index=0,
        uuid="GPU-0000:64:00.0",
        vendor="AMD",
        model="AMD 0x15bf",
        pci="0000:64:00.0",
        architecture="gfx1103",
        memory_total=31433977856,
        driver_version=f"Linux {platform.release()}",
        firmware="mec 67, sdma 23, vbios 113-PHXGENERIC-001, asd 0x21000104, dmcub 0x08005400, "
        "imu 0x0b012d00, me 0x00000063, mes 0x00000080, mes_kiq 0x00000106, pfp 0x00000067, "
        "rlc 0x0000008a, smc 0x004c6000, vcn 0x0911801b",
        health=Health(ecc_enabled=False, temperature_celsius=25),
    )


@pytest.mark.parametrize(
    ("name", "architecture", "temperature"),
    [("strixpoint", "gfx1150", 38), ("vangogh", "gfx1033", 56)],
)
def test_other_apus(machine: Machine, name: str, architecture: str, temperature: int) -> None:
    (device,) = devices_of(machine, name)
    assert (device.architecture, device.health.temperature_celsius) == (architecture, temperature)
    assert device.memory_free is None
