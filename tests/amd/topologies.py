"""Topologies of invented machines, as the rules of the mapping see them."""

from collections.abc import Iterable

from gpusnap.types import DeviceLink
from gpusnap_amd.mapping_rules import PCIE, XGMI, Gpu

SAME = {
    "vendor_id": 4098,
    "device_id": 0xD000,
    "simd_count": 304,
    "mem_banks_count": 1,
    "io_links_count": 8,
    "max_waves_per_simd": 8,
    "lds_size_in_kb": 64,
    "wave_front_size": 64,
    "array_count": 32,
    "simd_arrays_per_engine": 1,
    "cu_per_simd_array": 10,
    "simd_per_cu": 4,
    "max_slots_scratch_cu": 32,
    "num_sdma_engines": 2,
    "num_sdma_xgmi_engines": 6,
    "num_sdma_queues_per_engine": 8,
    "num_cp_queues": 24,
    "vram_public": 1,
    "capability": 0x0010_0000,
}
AT_LEAST = {
    "vram_size": 64 << 30,
    "num_gws": 64,
    "caches_count": 206,
    "fw_version": 177,
    "sdma_fw_version": 22,
}


class System:
    """CPUs are nodes 0, 1 and so on; GPUs are named, and come after them."""

    def __init__(self, cpus: int, prefix: str = "a") -> None:
        self.cpus = cpus
        self.prefix = prefix
        self.properties: list[dict[str, int]] = []
        self.links: dict[int, list[tuple[str, int]]] = {node: [] for node in range(cpus)}

    def add(self, count: int = 1, **changes: int) -> None:
        for _ in range(count):
            self.links[self.cpus + len(self.properties)] = []
            self.properties.append({**SAME, **AT_LEAST, **changes})

    def link(self, kind: str, start: int, *ends: int) -> None:
        """Link nodes one way."""
        self.links[start] += [(kind, end) for end in ends]

    def join(self, kind: str, nodes: Iterable[int]) -> None:
        """Link every one of the nodes to every other."""
        group = tuple(nodes)
        for node in group:
            self.link(kind, node, *(other for other in group if other != node))

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(
            Gpu(
                index=index,
                name=f"{self.prefix}{index}",
                model="Invented",
                node=self.cpus + index,
                properties=properties,
                links=tuple(
                    DeviceLink(
                        kind=kind,
                        node=end,
                        device=end >= self.cpus,
                        mutual=(kind, self.cpus + index) in self.links[end],
                    )
                    for kind, end in self.links[self.cpus + index]
                ),
            )
            for index, properties in enumerate(self.properties)
        )


def two_hives(
    prefix: str,
    ids: tuple[int, int],
    reached: Iterable[int],
    *,
    across: bool = True,
    bridged: tuple[bool, bool] = (True, True),
) -> System:
    """Eight GPUs in two hives on two CPUs, each GPU on the CPU of its parity.

    Args:
        prefix: How the names of the GPUs begin.
        ids: The device ids of the two halves.
        reached: The GPUs to which their CPU has a link back.
        across: Whether the halves see what is reached of each other, by PCIe.
        bridged: Whether each half is a hive; else its GPUs see each other by PCIe.
    """
    system = System(2, prefix)
    for device_id in ids:
        system.add(4, device_id=device_id)
    back = set(reached)
    for index in range(8):
        system.link(PCIE, index + 2, index % 2)
        if index in back:
            system.link(PCIE, index % 2, index + 2)
    for half, bridge in enumerate(bridged):
        mine, others = range(half * 4, half * 4 + 4), range(4 - half * 4, 8 - half * 4)
        system.join(XGMI if bridge else PCIE, (index + 2 for index in mine))
        for index in mine if across else ():
            system.link(PCIE, index + 2, *(other + 2 for other in others if other in back))
    return system


def misleading(prefix: str, cpus: int, gpus: int, shift: int) -> System:
    """GPUs between two CPUs each; what does not fit is met only after all others were placed."""
    system = System(cpus, prefix)
    system.add(gpus)
    for index in range(gpus):
        step = 1 if index < gpus - 1 else shift
        system.link(PCIE, cpus + index, index % cpus, (index + step) % cpus)
    return system
