"""Sums of a large file, taken in parts by several threads at once."""

import itertools
import mmap
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from gpusnap import native
from gpusnap.repository.storage import open_regular

STEP = 1 << 20
"""Bytes read at once: they are still in the cache when the second sum is taken."""

PART = 16 << 20
"""Bytes of every part of a file but the last."""

Advance = Callable[[int], None]


class Sums(NamedTuple):
    """Length in bytes, CRC-32 and BLAKE3 of a part; of a file, the BLAKE3 of those of its parts."""

    size: int
    crc32: int
    blake3: bytes


def new_buffer() -> memoryview:
    """Room for one step, from the beginning of a page.

    Large memory that malloc gives begins 16 bytes behind one, and there the kernel's copies take
    three times as long on some processors (``rep movsb`` of AMD's, measured).
    """
    return memoryview(mmap.mmap(-1, STEP))


def _sum_part(file: FileIO, number: int, buffer: memoryview, advance: Advance) -> Sums:
    """Read one part of a file; where the file ends it is shorter than others, or empty."""
    blake, crc, size = blake3(), 0, 0
    file.seek(number * PART)
    while length := file.readinto(buffer[: PART - size]):
        data = buffer[:length]
        crc = native.crc32(data, crc)
        blake.update(data)
        size += length
        advance(length)
    return Sums(size, crc, blake.digest())


class PartedFile:
    """A file that threads read together: each takes the next part that no other has taken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = itertools.count()
        self._parts: dict[int, Sums] = {}
        self._ended = False

    def read(self, advance: Advance) -> None:
        """Read parts until none is left; for each of the threads.

        Raises:
            OSError: The file cannot be read, or is no regular one; the other threads end, too.
        """
        buffer = new_buffer()
        try:
            with open_regular(self._path) as file:
                while not self._ended:
                    number = next(self._numbers)
                    part = self._parts[number] = _sum_part(file, number, buffer, advance)
                    if part.size < PART:
                        self._ended = True
        except BaseException:
            self._ended = True
            raise

    def sums(self) -> Sums:
        """Those of the file, once all threads have ended without an error."""
        blake, crc, size = blake3(), 0, 0
        for part in self._in_order():
            blake.update(part.blake3)
            crc = native.crc32_combine(crc, part.crc32, part.size)
            size += part.size
        return Sums(size, crc, blake.digest())

    def _in_order(self) -> Iterator[Sums]:
        """The parts up to the first short one: what was read behind it has been cut off."""
        for number in itertools.count():
            part = self._parts[number]
            if part.size:
                yield part
            if part.size < PART:
                return
