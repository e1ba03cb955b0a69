"""Reads from KFD's topology what CRIU's amdgpu plugin compares of a GPU."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from gpusnap.types import Device, DeviceLink, DeviceTopology
from gpusnap_amd.mapping_rules import PCIE, PROPERTIES, XGMI
from gpusnap_amd.sysfs import numbers, parse_properties, read_integer, read_text

_KINDS = {2: PCIE, 11: XGMI}
"""HSA_IOLINKTYPE of KFD's ``kfd_crat.h``; links of other types do not count."""
_PUBLIC, _PRIVATE = 1, 2
"""Heap types of video memory: all of it visible to the CPU, or not."""


def add_topology(
    sysfs: Path, devices: Sequence[Device], nodes: Sequence[int]
) -> tuple[Device, ...]:
    """Give every device the topology of its node.

    Args:
        sysfs: Root such as ``/sys``.
        devices: The devices.
        nodes: The node of each.
    """
    found = _read(sysfs / "class/kfd/kfd/topology/nodes")
    pairs = zip(devices, nodes, strict=True)
    return tuple(
        msgspec.structs.replace(device, topology=found.get(node)) for device, node in pairs
    )


def _read(folder: Path) -> dict[int, DeviceTopology]:
    """Read the GPU nodes; one that is closed to gpusnap is no node, and ends no link."""
    gpus = {}
    for node in numbers(folder):
        gpu_id = read_integer(folder / f"{node}/gpu_id")
        if gpu_id is not None:
            gpus[node] = gpu_id != 0
    links = {node: tuple(_links(folder / f"{node}/io_links", gpus)) for node in gpus}
    return {
        node: DeviceTopology(
            node=node,
            properties=_properties(folder / str(node)),
            links=tuple(
                DeviceLink(kind=kind, node=to, device=gpus[to], mutual=(kind, node) in links[to])
                for kind, to in links[node]
            ),
        )
        for node, is_gpu in gpus.items()
        if is_gpu
    }


def _links(folder: Path, nodes: Mapping[int, bool]) -> Iterator[tuple[str, int]]:
    for number in numbers(folder):
        values = parse_properties(read_text(folder / f"{number}/properties") or "")
        kind, node = _KINDS.get(values.get("type", 0)), values.get("node_to", -1)
        if kind is not None and node in nodes:
            yield kind, node


def _properties(folder: Path) -> dict[str, int]:
    values = parse_properties(read_text(folder / "properties") or "")
    known = {name: values[name] for name in PROPERTIES if name in values}
    return {**known, "vram_public": int(_is_public(folder / "mem_banks"))}


def _is_public(banks: Path) -> bool:
    """Whether the first bank of video memory is all visible to the CPU."""
    for number in numbers(banks):
        heap = parse_properties(read_text(banks / f"{number}/properties") or "").get("heap_type")
        if heap in {_PUBLIC, _PRIVATE}:
            return heap == _PUBLIC
    return False
