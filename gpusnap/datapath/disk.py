"""How fast the disk is that memory is saved on, and the better way to write to it."""

import mmap
import os
import secrets
import time
from pathlib import Path

import msgspec

from gpusnap.datapath.files import write_all
from gpusnap.datapath.spans import PAGE

_SAMPLE = 8 << 20
"""Bytes of the trial: enough to outweigh a disk's latency, few enough for a slow one."""

_LONG_SAMPLE = 64 << 20
"""Bytes of each of the two trials that tell which way is faster."""

_WORTH = 4 << 30
"""With fewer bytes to write those trials would take longer than they can win."""

_IN_MEMORY = 0.02e-9
"""Seconds a byte (50 GB/s) that no disk reaches."""


class Disk(msgspec.Struct, frozen=True):
    """What a trial of a disk showed.

    Attributes:
        cost: Seconds that it takes to make one written byte durable, the page cache aside.
        direct: Whether writing past the page cache (O_DIRECT) has bytes on the disk no later.
    """

    cost: float = 0.0
    direct: bool = False

    @property
    def in_memory(self) -> bool:
        """Whether there is nothing to wait for: tmpfs, or a cache that is never full."""
        return self.cost == 0.0


def try_disk(folder: Path, size: int) -> Disk:
    """Try the disk under a folder, and leave nothing there.

    In memory (tmpfs) it costs nothing, nor does a folder that cannot be written to: whoever
    writes to it learns why. Past the page cache the same speed takes a tenth of the processor time,
    so that way is taken unless it is slower or the file system refuses it.

    Args:
        folder: Where memory is to be saved.
        size: About how many bytes.
    """
    cost = _cost(folder)
    if cost >= _IN_MEMORY:
        # Once more: what others have the disk do meanwhile makes it slower for a moment
        cost = min(cost, _cost(folder))
    if cost < _IN_MEMORY:
        return Disk()
    if size < _WORTH:
        return Disk(cost)
    direct = _trial(folder, _LONG_SAMPLE, os.O_DIRECT)
    cached = _trial(folder, _LONG_SAMPLE)
    return Disk(cost, direct is not None and cached is not None and sum(direct) <= sum(cached))


def _cost(folder: Path) -> float:
    return (_trial(folder, _SAMPLE) or (0.0, 0.0))[1] / _SAMPLE


def _trial(folder: Path, length: int, flags: int = 0) -> tuple[float, float] | None:
    """Seconds to write so many bytes and to make them durable; None where that cannot be."""
    path = folder / f".trial-{secrets.token_hex(8)}"
    flags |= os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            path.unlink()  # at once: nothing is left, however gpusnap ends
            return _write(descriptor, length)
        finally:
            os.close(descriptor)
    except OSError:
        return None


def _write(descriptor: int, length: int) -> tuple[float, float]:
    # As in a pack: O_DIRECT gets whole pages on whole pages, but no larger blocks, which a file
    # system may want. Random, so that nothing compresses it.
    memory = memoryview(mmap.mmap(-1, _SAMPLE))
    memory[:] = os.urandom(_SAMPLE >> 3) * 8
    parts = (memory[PAGE:], memory[:PAGE])
    begin = time.perf_counter()
    for at in range(PAGE, PAGE + length, _SAMPLE):
        write_all(descriptor, parts, at)
    written = time.perf_counter()
    os.fdatasync(descriptor)
    return written - begin, time.perf_counter() - written
