"""How much a folder can still take, also where its file system lies in memory."""

from pathlib import Path

import psutil

from gpusnap.datapath.allowance import available

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""File systems whose files take memory."""


def file_system(folder: Path) -> str:
    """The type of the file system that a folder is on, such as ``ext4`` or ``tmpfs``."""
    within = [Path("/"), *folder.resolve().parents, folder.resolve()]
    mounts = [each for each in psutil.disk_partitions(all=True) if Path(each.mountpoint) in within]
    # Of two on the same point the later one hides the other.
    ordered = sorted(mounts, key=lambda each: len(Path(each.mountpoint).parts))
    return ordered[-1].fstype if ordered else "unknown"


def room(folder: Path) -> int:
    """Bytes that can be written to a folder without filling its disk, or the memory behind it."""
    free = psutil.disk_usage(str(folder)).free
    return min(free, available()) if file_system(folder) in IN_MEMORY else free
