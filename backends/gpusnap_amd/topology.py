"""The GPUs in KFD's topology, ``/sys/class/kfd/kfd/topology``.

Formats after the kernel's ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from gpusnap_amd.sysfs import numbers, parse_properties, read_integer, read_text

_U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
_GPU_HEAPS = (1, 2)
"""Heap types of video memory: public (all of it is visible to the CPU) and private."""


class NodeProperties(msgspec.Struct, frozen=True):
    """What is used of a node's properties; those without default every kernel with KFD has."""

    vendor_id: _U32
    device_id: _U32
    location_id: _U32
    """Bus, device and function in the low 16 bits; the partition in the high 4, or on some
    versions of the driver in place of the function."""
    domain: _U32 = 0
    """Old kernels do not tell it, and 0 is right on nearly every machine."""
    gfx_target_version: _U32 = 0
    unique_id: int = 0
    drm_render_minor: _U32 = 0
    capability: _U32 | None = None
    fw_version: _U32 | None = None
    sdma_fw_version: _U32 | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU node, which is one partition where a GPU is split; memory in bytes."""

    node: int
    gpu_id: int
    properties: NodeProperties
    memory_total: int | None
    memory_used: int | None


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU nodes in KFD's order, and in sentences why others were skipped."""

    gpus: tuple[Gpu, ...]
    skipped: tuple[str, ...]


def read_topology(sysfs: Path) -> Topology | None:
    """Read the topology below a root such as ``/sys``; None where there is no KFD."""
    folder = sysfs / "class/kfd/kfd/topology/nodes"
    if not (nodes := numbers(folder)):
        return None
    gpus, skipped = [], []
    hidden = 0
    for node in nodes:
        gpu_id = read_text(folder / str(node) / "gpu_id")
        if gpu_id is None:
            hidden += 1
        elif isinstance(read := _read_node(folder / str(node), node), Gpu):
            gpus.append(read)
        elif read is not None:
            skipped.append(read)
    if hidden:
        skipped.append(f"KFD does not show gpusnap {hidden} of its nodes (a device cgroup may)")
    return Topology(gpus=tuple(gpus), skipped=tuple(skipped))


def _read_node(folder: Path, node: int) -> Gpu | str | None:
    """Read a node: a GPU, or why it was skipped, or None for a CPU."""
    gpu_id = read_integer(folder / "gpu_id")
    if gpu_id == 0:
        return None
    text = read_text(folder / "properties")
    if gpu_id is None or text is None:
        return f"KFD node {node} has no readable {'gpu_id' if gpu_id is None else 'properties'}"
    try:
        properties = msgspec.convert(parse_properties(text), NodeProperties)
    except msgspec.ValidationError as error:
        return f"KFD node {node} has malformed properties: {error}"
    total, used = _memory(folder / "mem_banks")
    return Gpu(
        node=node, gpu_id=gpu_id, properties=properties, memory_total=total, memory_used=used
    )


def _memory(banks: Path) -> tuple[int | None, int | None]:
    """Size and use of the first bank that is video memory."""
    for number in numbers(banks):
        bank = banks / str(number)
        values = parse_properties(read_text(bank / "properties") or "")
        size = values.get("size_in_bytes", 0)
        if values.get("heap_type") in _GPU_HEAPS and size > 0:
            return size, read_integer(bank / "used_memory")
    return None, None
