"""Memory that copied pages wait in, within a budget."""

import contextlib
import mmap

from gpusnap.datapath.allowance import available
from gpusnap.errors import GpusnapError

_SIZE = 16 << 20
"""Bytes of one buffer, unless the budget is small."""

_LEAST = 1 << 20
_SHARE = 4
_CURE = "Free memory, or raise the limit of the process (ulimit -v)"


def default_budget() -> int:
    """A quarter of the memory that can be had, so that others have room meanwhile; in bytes."""
    return available() // _SHARE


class Buffer:
    """A piece of memory and whether it was used before."""

    def __init__(self, size: int) -> None:
        """Take so many bytes.

        Raises:
            GpusnapError: There are not so many.
        """
        try:
            self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise GpusnapError("There is no memory for a buffer", cure=_CURE) from error
        self.used = False
        with contextlib.suppress(OSError):  # a kernel without huge pages: it is only slower
            self.memory.madvise(mmap.MADV_HUGEPAGE)


class Buffers:
    """Buffers that are made as they are needed, never more than the budget allows.

    Not safe for threads: whoever shares it holds a lock.
    """

    def __init__(self, budget: int, workers: int) -> None:
        # With few bytes, small buffers let all workers have one.
        self.size = min(_SIZE, max(_LEAST, budget // workers // mmap.PAGESIZE * mmap.PAGESIZE))
        self._left = max(1, budget // self.size)
        self._made = 0
        self._free: list[Buffer] = []

    def take(self) -> Buffer | None:
        """A buffer; None where all are in use.

        Raises:
            GpusnapError: There is no memory for a single one.
        """
        if self._free:
            return self._free.pop()
        if self._left == 0:
            return None
        try:
            buffer = Buffer(self.size)
        except GpusnapError:
            # What there is has to do; without any there is nothing to wait for.
            self._left = 0
            if self._made == 0:
                raise
            return None
        self._left -= 1
        self._made += 1
        return buffer

    def give(self, buffer: Buffer) -> None:
        """Take back a buffer."""
        buffer.used = True
        self._free.append(buffer)

    def drop(self) -> None:
        """Let go of the buffers that are free; there will be no need for them."""
        self._free.clear()
