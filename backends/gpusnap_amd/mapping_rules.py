"""What the amdgpu plugin of CRIU compares of a saved GPU and one that is to replace it.

Rules after ``plugins/amdgpu/amdgpu_plugin_topology.c`` of CRIU's sources. The plugin decides
once more when it restores; it reads the checks from the environment, each on by default.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from gpusnap.types import Device, DeviceLink, DeviceTopology

PCIE = "pcie"
XGMI = "xgmi"


class Check(StrEnum):
    """What the plugin compares unless the variable of this name says 0 or NO."""

    FIRMWARE = "KFD_FW_VER_CHECK"
    SDMA_FIRMWARE = "KFD_SDMA_FW_VER_CHECK"
    CACHES = "KFD_CACHES_COUNT_CHECK"
    GLOBAL_WAVE_SYNC = "KFD_NUM_GWS_CHECK"
    MEMORY = "KFD_VRAM_SIZE_CHECK"
    CAPABILITY = "KFD_CAPABILITY_CHECK"
    NUMA = "KFD_NUMA_CHECK"


ALL = frozenset(Check)

EQUAL = (
    "vendor_id",
    "device_id",
    "simd_count",
    "mem_banks_count",
    "io_links_count",
    "max_waves_per_simd",
    "lds_size_in_kb",
    "wave_front_size",
    "array_count",
    "simd_arrays_per_engine",
    "cu_per_simd_array",
    "simd_per_cu",
    "max_slots_scratch_cu",
    "num_sdma_engines",
    "num_sdma_xgmi_engines",
    "num_sdma_queues_per_engine",
    "num_cp_queues",
    "vram_public",
)
EQUAL_IF_CHECKED = {"capability": Check.CAPABILITY}
AT_LEAST_IF_CHECKED = {
    "vram_size": Check.MEMORY,
    "num_gws": Check.GLOBAL_WAVE_SYNC,
    "caches_count": Check.CACHES,
    "fw_version": Check.FIRMWARE,
    "sdma_fw_version": Check.SDMA_FIRMWARE,
}
PROPERTIES = (*EQUAL, *EQUAL_IF_CHECKED, *AT_LEAST_IF_CHECKED)


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as the rules see it; ``links`` are those to nodes that are shown."""

    index: int
    name: str
    model: str
    node: int
    properties: dict[str, int]
    links: tuple[DeviceLink, ...]

    @property
    def cpu_links(self) -> tuple[DeviceLink, ...]:
        """The links to CPUs; those between GPUs are counted, and compared no further."""
        return tuple(link for link in self.links if not link.device)

    @property
    def neighbours(self) -> frozenset[int]:
        """The nodes of GPUs with which it shares a hive."""
        shared = (link for link in self.links if link.kind == XGMI and link.mutual)
        return frozenset(link.node for link in shared if link.device)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps a GPU from replacing a saved one.

    Attributes:
        what: The property, or a link in words.
        saved: Its value at the time of the checkpoint.
        present: Its value now, None where there is none.
        check: The check that could be turned off, None where none helps.
    """

    what: str
    saved: int | str | None
    present: int | str | None
    check: Check | None = None


def gpu_of(device: Device) -> Gpu:
    """What the rules need of a device; without a topology its properties are unknown."""
    topology = device.topology or DeviceTopology(node=-1, properties={})
    properties = dict(topology.properties)
    if device.memory_total is not None:
        properties["vram_size"] = device.memory_total
    return Gpu(
        index=device.index,
        name=device.uuid,
        model=device.model,
        node=topology.node,
        properties=properties,
        links=topology.links,
    )


def active_checks(environment: Mapping[str, str]) -> frozenset[Check]:
    """The checks that the plugin would make under these variables."""
    off = {"0", "NO"}
    return frozenset(check for check in Check if environment.get(check, "").upper() not in off)


def replaces(saved: DeviceLink, present: DeviceLink) -> bool:
    """Whether a link does for a saved one: XGMI for PCIe, both ways for one way, no less."""
    return (
        saved.device == present.device
        and not (saved.kind == XGMI and present.kind == PCIE)
        and (present.mutual or not saved.mutual)
    )


def differences(saved: Gpu, present: Gpu, checks: frozenset[Check] = ALL) -> Iterator[Difference]:
    """What keeps a GPU from replacing a saved one, looking at these two alone."""
    if saved.model != present.model:
        yield Difference(what="model", saved=saved.model, present=present.model)
    for what in PROPERTIES:
        yield from _property(what, saved.properties, present.properties, checks)
    yield from _links(saved, present)


def _property(
    what: str, saved: dict[str, int], present: dict[str, int], checks: frozenset[Check]
) -> Iterator[Difference]:
    old, new = saved.get(what), present.get(what)
    check = EQUAL_IF_CHECKED.get(what) or AT_LEAST_IF_CHECKED.get(what)
    fits = (old or 0) <= (new or 0) if what in AT_LEAST_IF_CHECKED else old == new
    if not fits and (check is None or check in checks):
        yield Difference(what=what, saved=old, present=new, check=check)


def _links(saved: Gpu, present: Gpu) -> Iterator[Difference]:
    old, new = len(saved.links), len(present.links)
    if old > new:
        yield Difference(what="number of links", saved=old, present=new)
    for link in saved.cpu_links:
        if not any(replaces(link, other) for other in present.cpu_links):
            yield Difference(what=f"link to CPU node {link.node}", saved=_told(link), present=None)


def _told(link: DeviceLink) -> str:
    return f"{link.kind}, {'both ways' if link.mutual else 'one way'}"
