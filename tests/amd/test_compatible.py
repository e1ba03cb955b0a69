"""What the AMD backend compares of whole machines, and what it says of it."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from gpusnap.types import (
    Device,
    DeviceLink,
    DeviceMap,
    DeviceTopology,
    Finding,
    Incompatible,
)
from gpusnap_amd import AmdBackend
from gpusnap_amd.mapping import compatible
from gpusnap_amd.mapping_rules import Gpu
from tests.amd.invented import Machine
from tests.amd.topologies import SAME, misleading

PCIE, XGMI, OTHER = 2, 11, 1


def link(machine: Machine, node: int, *ends: tuple[int, int]) -> None:
    for number, (kind, end) in enumerate(ends):
        path = f"{machine.node(node)}/io_links/{number}/properties"
        machine.write(path, f"type {kind}\nversion_major 0\nnode_from {node}\nnode_to {end}\n")


@pytest.fixture
def pair(machine: Machine) -> Machine:
    """Two GPUs that a bridge joins, on one CPU."""
    machine.add_cpu(0)
    for node in (1, 2):
        machine.add_gpu(node, unique_id=node, location_id=node << 8, **_properties())
    link(machine, 0, (PCIE, 1), (OTHER, 2))
    link(machine, 1, (PCIE, 0), (XGMI, 2), (XGMI, 9))
    link(machine, 2, (PCIE, 0), (XGMI, 1))
    return machine


def _properties() -> dict[str, int]:
    shown = SAME.keys() - {"device_id", "vendor_id", "vram_public", "capability"}
    return {name: SAME[name] for name in shown} | {"num_gws": 64, "caches_count": 206}


def test_topology_is_read(pair: Machine, backend: AmdBackend) -> None:
    first, second = (device.topology for device in backend.gpusnap_devices())
    assert first is not None
    assert second is not None
    assert (first.node, second.node) == (1, 2)
    assert first.properties["simd_count"] == SAME["simd_count"]
    assert first.properties["vram_public"] == 1
    assert first.links == (
        DeviceLink(kind="pcie", node=0, device=False, mutual=True),
        DeviceLink(kind="xgmi", node=2, device=True, mutual=True),
    )  # node 9 does not exist
    assert [each.mutual for each in second.links] == [False, True]


def test_a_node_that_is_closed_ends_no_link(pair: Machine, backend: AmdBackend) -> None:
    (pair.sysfs / pair.node(2) / "gpu_id").unlink()
    (device,) = backend.gpusnap_devices()
    assert device.topology is not None
    assert [each.node for each in device.topology.links] == [0]


def test_private_memory(pair: Machine, backend: AmdBackend) -> None:
    pair.write(f"{pair.node(1)}/mem_banks/0/properties", "heap_type 2\nsize_in_bytes 9\n")
    first, second = backend.gpusnap_devices()
    assert first.topology is not None
    assert first.topology.properties["vram_public"] == 0
    assert findings((second, first), (second, second))


def findings(
    saved: Iterable[Device], present: Iterable[Device], **environment: str
) -> tuple[Finding, ...]:
    answer = compatible(tuple(saved), tuple(present), environment)
    return answer.findings if isinstance(answer, Incompatible) else ()


def test_the_same_machine(pair: Machine, backend: AmdBackend) -> None:
    devices = backend.gpusnap_devices()
    answer = backend.gpusnap_compatible(devices, devices)
    assert isinstance(answer, DeviceMap)
    assert answer.identity


def test_the_like_of_it(pair: Machine, backend: AmdBackend, tmp_path: Path) -> None:
    saved = backend.gpusnap_devices()
    present = tuple(
        msgspec.structs.replace(device, uuid=f"GPU-other-{device.index}") for device in saved
    )
    answer = backend.gpusnap_compatible(saved, present)
    assert isinstance(answer, DeviceMap)
    assert answer.pairs == (
        ("GPU-0000000000000001", "GPU-other-0"),
        ("GPU-0000000000000002", "GPU-other-1"),
    )


def changed(device: Device, **properties: int) -> Device:
    topology = device.topology
    assert topology is not None
    new = msgspec.structs.replace(topology, properties=topology.properties | properties)
    return msgspec.structs.replace(device, topology=new)


def test_older_firmware_is_named_with_its_check(pair: Machine, backend: AmdBackend) -> None:
    first, second = backend.gpusnap_devices()
    present = (first, changed(second, fw_version=100))
    (finding,) = findings((first, second), present)
    assert finding.code == "device-property"
    assert finding.text == (
        "GPU 1 (GPU-0000000000000002) cannot replace GPU 1 of the snapshot "
        "(GPU-0000000000000002): fw_version was 177, is 100"
    )
    assert "Set KFD_FW_VER_CHECK=0 " in (finding.cure or "")
    for off in ("0", "NO", "no"):
        assert findings((first, second), present, KFD_FW_VER_CHECK=off) == ()
    assert findings((first, second), present, KFD_FW_VER_CHECK="1")


def test_other_kind_says_no_more_than_that(pair: Machine, backend: AmdBackend) -> None:
    first, second = backend.gpusnap_devices()
    (finding,) = findings((first, second), (first, changed(second, device_id=1, simd_count=1)))
    assert finding.code == "device-model"
    assert "device_id was 29857, is 1" in finding.text
    assert "KFD_" not in (finding.cure or "")


def test_less_memory(pair: Machine, backend: AmdBackend) -> None:
    first, second = backend.gpusnap_devices()
    small = msgspec.structs.replace(second, memory_total=1 << 30)
    (finding,) = findings((first, second), (first, small))
    assert finding.code == "device-memory"
    assert "vram_size was 68719476736, is 1073741824" in finding.text
    assert findings((first, small), (first, second)) == ()


def unlinked(device: Device, *nodes: int) -> Device:
    topology = device.topology
    assert topology is not None
    links = tuple(each for each in topology.links if each.node not in nodes)
    return msgspec.structs.replace(device, topology=msgspec.structs.replace(topology, links=links))


def test_missing_link(pair: Machine, backend: AmdBackend) -> None:
    first, second = backend.gpusnap_devices()
    found = findings((first, second), (first, unlinked(second, 0)))
    assert {finding.code for finding in found} == {"device-links"}
    said = " ".join(finding.text for finding in found)
    assert "number of links was 2, is 1" in said


def test_missing_hive(pair: Machine, backend: AmdBackend) -> None:
    first, second = backend.gpusnap_devices()
    (finding,) = findings((first, second), (unlinked(first, 2), unlinked(second, 1)))
    assert finding.code == "device-links"
    assert "form 1 XGMI hives, those of this machine 0" in finding.text


def test_missing_gpu(pair: Machine, backend: AmdBackend) -> None:
    devices = backend.gpusnap_devices()
    (finding,) = findings(devices, devices[:1])
    assert finding.code == "device-count"


def test_a_snapshot_without_topology(pair: Machine, backend: AmdBackend) -> None:
    devices = backend.gpusnap_devices()
    bare = tuple(msgspec.structs.replace(device, topology=None) for device in devices)
    assert any("was unknown" in finding.text for finding in findings(bare, devices))


def device_of(gpu: Gpu) -> Device:
    return Device(
        index=gpu.index,
        uuid=gpu.name,
        vendor="AMD",
        model=gpu.model,
        memory_total=gpu.properties["vram_size"],
        topology=DeviceTopology(node=gpu.node, properties=gpu.properties, links=gpu.links),
    )


def test_a_search_that_is_given_up() -> None:
    saved, present = misleading("a", 30, 30, 1).gpus(), misleading("b", 30, 30, 15).gpus()
    (finding,) = findings(map(device_of, saved), map(device_of, present))
    assert finding.code == "device-links"
    assert finding.text == "Whether the GPUs fit was not found out in 20000 steps"
    assert "KFD_NUMA_CHECK=0" in (finding.cure or "")


def test_spread_over_other_cpus(machine: Machine, backend: AmdBackend) -> None:
    for cpu in (0, 1):
        machine.add_cpu(cpu)
    for node in (2, 3):
        machine.add_gpu(node, unique_id=node, location_id=node << 8)
        link(machine, node, (PCIE, node - 2))
    present = backend.gpusnap_devices()
    link(machine, 3, (PCIE, 0))
    (finding,) = findings(backend.gpusnap_devices(), present)
    assert finding.code == "device-links"
    assert "not all at once" in finding.text
    assert "KFD_NUMA_CHECK=0" in (finding.cure or "")
