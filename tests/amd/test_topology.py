import os
import random

import pytest

from gpusnap.errors import NoBackendError
from gpusnap_amd import AmdBackend
from tests.amd.invented import Machine


def test_no_kfd(backend: AmdBackend) -> None:
    probe = backend.gpusnap_probe()
    assert not probe.usable
    assert probe.reasons == ("KFD shows no topology: the amdgpu driver is not loaded",)
    with pytest.raises(NoBackendError, match="driver is not loaded"):
        backend.gpusnap_devices()


def test_processors_only(machine: Machine, backend: AmdBackend) -> None:
    machine.add_cpu(0)
    probe = backend.gpusnap_probe()
    assert (probe.usable, probe.reasons) == (False, ("KFD's topology holds no GPU",))


def test_usable(machine: Machine, backend: AmdBackend) -> None:
    machine.add_cpu(0)
    machine.add_gpu(1)
    machine.write("module/amdgpu/version", "6.12.12\n")
    probe = backend.gpusnap_probe()
    assert (probe.usable, probe.reasons, probe.driver_version) == (True, (), "6.12.12")


def test_root_from_the_environment(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.add_gpu(1)
    monkeypatch.setenv("GPUSNAP_SYSFS", str(machine.sysfs))
    assert len(AmdBackend().gpusnap_devices()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads files that are closed to everyone")
def test_forbidden_gpu_id(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1)
    machine.write(f"{machine.node(1)}/gpu_id", "1001\n").chmod(0)
    assert backend.gpusnap_devices() == ()


def test_hidden_nodes_are_skipped_and_told(machine: Machine, backend: AmdBackend) -> None:
    for node in (1, 2, 3):
        machine.add_gpu(node, unique_id=node)
    for node in (1, 3):
        gpu_id = machine.sysfs / machine.node(node) / "gpu_id"
        gpu_id.unlink()
        gpu_id.mkdir()  # reading fails for root too, as it does for a GPU outside the cgroup
    assert [device.uuid for device in backend.gpusnap_devices()] == [f"GPU-{2:016x}"]
    probe = backend.gpusnap_probe()
    assert probe.usable
    assert probe.reasons == ("KFD does not show gpusnap 2 of its nodes (a device cgroup may)",)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("gpu_id", b"\xff\xfe\n", "KFD node 1 has no readable gpu_id"),
        ("properties", b"", "KFD node 1 has malformed properties: "),
        ("properties", b"vendor_id 4098\ndevice_id x\nlocation_id 3\n", "`device_id`"),
        ("properties", b"vendor_id 4294967296\ndevice_id 1\nlocation_id 3\n", "<= 4294967295"),
        ("properties", random.Random(1).randbytes(4096), "KFD node 1 has malformed properties: "),
    ],
)
def test_malformed_node_is_skipped_and_told(
    machine: Machine, backend: AmdBackend, file: str, content: bytes, reason: str
) -> None:
    machine.add_gpu(1)
    machine.add_gpu(2, unique_id=2)
    machine.write(f"{machine.node(1)}/{file}", content)
    assert [device.uuid for device in backend.gpusnap_devices()] == [f"GPU-{2:016x}"]
    (told,) = backend.gpusnap_probe().reasons
    assert reason in told


def test_huge_files_are_not_read(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1)
    machine.add_board(product_name="x", **{"ras/gpu_vram_bad_pages": "x"})
    board = machine.sysfs / "bus/pci/devices/0000:c1:00.0"
    os.truncate(board / "product_name", 1 << 40)
    os.truncate(board / "ras/gpu_vram_bad_pages", 1 << 40)
    (device,) = backend.gpusnap_devices()
    assert (device.model, device.health.bad_pages) == ("AMD 0x74a1", None)
    os.truncate(machine.sysfs / machine.node(1) / "properties", 1 << 40)
    assert backend.gpusnap_devices() == ()


def test_endless_file(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1)
    properties = machine.sysfs / machine.node(1) / "properties"
    properties.unlink()
    properties.symlink_to("/dev/zero")
    assert backend.gpusnap_devices() == ()


def test_second_bank_where_the_first_is_empty(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1)
    banks = f"{machine.node(1)}/mem_banks"
    machine.write(f"{banks}/0/properties", "heap_type 0\nsize_in_bytes 4096\n")
    machine.write(f"{banks}/1/properties", "heap_type 2\nsize_in_bytes 8192\n")
    machine.write(f"{banks}/1/used_memory", "4096\n")
    (device,) = backend.gpusnap_devices()
    assert (device.memory_total, device.memory_free) == (8192, 4096)
