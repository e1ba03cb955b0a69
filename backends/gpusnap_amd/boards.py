"""The PCI devices behind KFD nodes; several nodes share one where a GPU is partitioned."""

from collections import Counter
from pathlib import Path

import msgspec

from gpusnap_amd.sysfs import read_line, read_text
from gpusnap_amd.topology import Gpu, NodeProperties


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """The PCI device of a node, and which partition of it the node is."""

    pci: str
    folder: Path | None
    """Its folder in sysfs, with the files of the amdgpu driver; None where it is not shown."""
    partition: int
    partitioned: bool | None


def find_boards(sysfs: Path, gpus: tuple[Gpu, ...]) -> tuple[Board, ...]:
    """Find the board of each GPU node."""
    nodes = Counter(_key(gpu.properties) for gpu in gpus)
    return tuple(
        _find_board(sysfs, gpu.properties, shared=nodes[_key(gpu.properties)] > 1) for gpu in gpus
    )


def _key(properties: NodeProperties) -> tuple[int, int]:
    """What nodes of one board have in common: its unique_id, else its address."""
    return properties.unique_id, 0 if properties.unique_id else properties.location_id


def _find_board(sysfs: Path, properties: NodeProperties, *, shared: bool) -> Board:
    location = properties.location_id
    slot = f"{properties.domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
    function, partition = location & 7, location >> 28
    devices = sysfs / "bus/pci/devices"
    if not _is_pci(devices / f"{slot}.{function}") and (shared or _is_pci(devices / f"{slot}.0")):
        # This version of the driver put the partition where the function belongs.
        function, partition = 0, partition or function
    places = (
        devices / f"{slot}.{function}",
        sysfs / f"class/drm/renderD{properties.drm_render_minor}/device",
    )
    folder = next((place for place in places if _is_pci(place)), None)
    return Board(
        pci=f"{slot}.{function}",
        folder=folder,
        partition=partition,
        partitioned=True if shared or partition > 0 else _mode(folder),
    )


def _is_pci(folder: Path) -> bool:
    return read_text(folder / "vendor") is not None


def _mode(folder: Path | None) -> bool | None:
    mode = read_line(folder / "current_compute_partition") if folder else None
    return None if mode is None else mode != "SPX"
