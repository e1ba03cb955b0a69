"""What a bench's figures depend on, and whether there is room for it."""

import platform
import shutil
from importlib.metadata import version
from pathlib import Path

import psutil

from gpusnap import native
from gpusnap.bench.report import Machine
from gpusnap.criu import Criu
from gpusnap.errors import GpusnapError, UsageError
from gpusnap.repository.tree import processors

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})

LEAST = 16 << 20
"""Bytes from which memory goes past CRIU, which is what is to be compared."""

_MARGIN = 1.1
"""Images hold the process's own memory and some tables besides its data."""


def read_machine(criu: Criu, folder: Path) -> Machine:
    """The facts that belong to the figures."""
    return Machine(
        processor=_processor(),
        processors=processors(),
        memory=psutil.virtual_memory().total,
        kernel=platform.release(),
        criu_version=criu.version_text,
        gpusnap_version=version("gpusnap"),
        file_system=file_system(folder),
        crc32=native.implementations()[0],
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def file_system(folder: Path) -> str:
    """The type of the file system that a folder is on, such as ``ext4`` or ``tmpfs``."""
    within = [Path("/"), *folder.resolve().parents, folder.resolve()]
    mounts = [each for each in psutil.disk_partitions(all=True) if Path(each.mountpoint) in within]
    # Of two on the same point the later one hides the other.
    ordered = sorted(mounts, key=lambda each: len(Path(each.mountpoint).parts))
    return ordered[-1].fstype if ordered else "unknown"


def require_room(size: int, folder: Path) -> None:
    """Refuse what would fill memory or disk; other programs would suffer from that.

    Args:
        size: Bytes of memory of the program.
        folder: Where its snapshots go.

    Raises:
        UsageError: So little memory that nothing would be compared.
        GpusnapError: There is no room.
    """
    if size < LEAST:
        raise UsageError(f"A bench of {size} bytes compares nothing", cure="Use 16MiB or more")
    # The program, its image where that is in memory too, and buffers.
    needed = int(size * (2.5 if file_system(folder) in _IN_MEMORY else 1.5))
    available = psutil.virtual_memory().available
    if needed > available:
        msg = f"The bench needs about {needed} bytes of memory, {available} are available"
        raise GpusnapError(msg, cure="Use a smaller --size, or a --folder on a disk")
    needed, free = int(size * _MARGIN), shutil.disk_usage(folder).free
    if needed > free:
        msg = f"The bench needs about {needed} bytes in {folder}, {free} are free"
        raise GpusnapError(msg, cure="Use a smaller --size, or another --folder")
