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
from gpusnap.room import IN_MEMORY, file_system

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
    needed = int(size * (2.5 if file_system(folder) in IN_MEMORY else 1.5))
    available = psutil.virtual_memory().available
    if needed > available:
        msg = f"The bench needs about {needed} bytes of memory, {available} are available"
        raise GpusnapError(msg, cure="Use a smaller --size, or a --folder on a disk")
    needed, free = int(size * _MARGIN), shutil.disk_usage(folder).free
    if needed > free:
        msg = f"The bench needs about {needed} bytes in {folder}, {free} are free"
        raise GpusnapError(msg, cure="Use a smaller --size, or another --folder")
