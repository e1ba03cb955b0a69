"""Device structs from KFD's nodes and from the driver's files in their PCI folders.

Formats after the kernel's ``drivers/gpu/drm/amd/amdgpu`` and its documentation of ``ras``.
"""

import platform
import re
from pathlib import Path

from gpusnap.types import Device, EccCounts, Health
from gpusnap_amd.boards import Board, find_boards
from gpusnap_amd.sysfs import names, read_integer, read_line, read_text
from gpusnap_amd.topology import Gpu, NodeProperties, Topology

_MEMORY_ECC = 0x0010_0000
"""HSA_CAP_MEM_EDCSUPPORTED of a node's capability: the driver corrects memory errors."""
_FIRMWARE = "_fw_version"
_BAD_PAGE = re.compile(r"0x[0-9a-f]+ : 0x[0-9a-f]+ : [RPF]")


def list_devices(sysfs: Path, topology: Topology) -> tuple[Device, ...]:
    """One struct for each GPU node, in KFD's order."""
    version = driver_version(sysfs)
    pairs = zip(topology.gpus, find_boards(sysfs, topology.gpus), strict=True)
    return tuple(_device(index, gpu, board, version) for index, (gpu, board) in enumerate(pairs))


def driver_version(sysfs: Path) -> str:
    """The version of the amdgpu module where it has its own, else the kernel's."""
    return read_line(sysfs / "module/amdgpu/version") or f"Linux {platform.release()}"


def architecture(version: int) -> str | None:
    """LLVM's name of a ``gfx_target_version``: 90402 is gfx942, 90010 is gfx90a."""
    if version == 0:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _device(index: int, gpu: Gpu, board: Board, version: str) -> Device:
    properties = gpu.properties
    total, free = _memory(gpu, board)
    model = read_line(board.folder / "product_name") if board.folder else None
    return Device(
        index=index,
        uuid=_uuid(properties, board),
        vendor="AMD",
        model=model or f"AMD 0x{properties.device_id:04x}",
        pci=board.pci,
        architecture=architecture(properties.gfx_target_version),
        memory_total=total,
        memory_free=free,
        driver_version=version,
        firmware=_firmware(properties, board.folder),
        partitioned=board.partitioned,
        health=_health(properties, board.folder),
    )


def _uuid(properties: NodeProperties, board: Board) -> str:
    """Name a device for good: the partitions of one GPU share its unique_id."""
    unique = f"{properties.unique_id:016x}" if properties.unique_id else board.pci
    return f"GPU-{unique}-{board.partition}" if board.partitioned else f"GPU-{unique}"


def _firmware(properties: NodeProperties, folder: Path | None) -> str | None:
    """What KFD compares first, then the rest as the driver writes it."""
    parts: dict[str, str | int | None] = {
        "mec": properties.fw_version,
        "sdma": properties.sdma_fw_version,
    }
    if folder is not None:
        parts |= {"vbios": read_line(folder / "vbios_version"), **_loaded(folder / "fw_version")}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value) or None


def _loaded(firmware: Path) -> dict[str, str]:
    """The versions in ``<block>_fw_version`` files; blocks that a GPU has not read as zero."""
    blocks = (name.removesuffix(_FIRMWARE) for name in names(firmware) if _FIRMWARE in name)
    versions = {block: read_line(firmware / f"{block}{_FIRMWARE}") or "" for block in blocks}
    return {
        block: version
        for block, version in versions.items()
        if block not in {"mec", "sdma"} and version.strip("0x")
    }


def _memory(gpu: Gpu, board: Board) -> tuple[int | None, int | None]:
    """Bytes in all and free.

    The files of the PCI folder count the whole board, so not for a partition; and KFD counts
    what an APU may borrow from the host, the PCI folder does not: its use says nothing then.
    """
    total, used = gpu.memory_total, gpu.memory_used
    if used is None and board.folder and not board.partitioned:
        whole = read_integer(board.folder / "mem_info_vram_total")
        if whole is not None and whole > 0 and total in {None, whole}:
            total, used = whole, read_integer(board.folder / "mem_info_vram_used")
    if total is None or used is None or not 0 <= used <= total:
        return total, None
    return total, total - used


def _health(properties: NodeProperties, folder: Path | None) -> Health:
    capability = properties.capability
    enabled = None if capability is None else bool(capability & _MEMORY_ECC)
    if folder is None:
        return Health(ecc_enabled=enabled)
    return Health(
        ecc_enabled=enabled,
        ecc=_error_counts(folder / "ras"),
        bad_pages=_bad_pages(folder / "ras"),
        temperature_celsius=_temperature(folder / "hwmon"),
    )


def _error_counts(ras: Path) -> EccCounts:
    """Add up the counters of all blocks; the driver counts since it was loaded."""
    blocks = [read_text(ras / name) or "" for name in names(ras) if name.endswith("_err_count")]
    return EccCounts(
        volatile_corrected=_total(blocks, "ce"), volatile_uncorrected=_total(blocks, "ue")
    )


def _total(blocks: list[str], kind: str) -> int | None:
    line = re.compile(rf"^{kind}: (\d{{1,20}})$", re.ASCII | re.MULTILINE)
    counts = [int(count) for block in blocks for count in line.findall(block)]
    return sum(counts) if counts else None


def _bad_pages(ras: Path) -> int | None:
    text = read_text(ras / "gpu_vram_bad_pages")
    if text is None:
        return None
    lines = text.splitlines()
    return len(lines) if all(_BAD_PAGE.fullmatch(line) for line in lines) else None


def _temperature(hwmon: Path) -> int | None:
    """Degrees Celsius of the edge sensor, or of the junction where there is no edge sensor."""
    for name in names(hwmon):
        for sensor in ("temp1_input", "temp2_input"):
            value = read_integer(hwmon / name / sensor)
            if value is not None:
                return round(value / 1000)
    return None
