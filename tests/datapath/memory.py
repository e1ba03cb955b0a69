"""Memory of the testing process itself, to save and to fill."""

import ctypes
import mmap
import os

from gpusnap.datapath import Kind, Span

MIB = 1 << 20


class Memory:
    """A private anonymous mapping; it lives as long as the object."""

    def __init__(self, content: bytes) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._map = mmap.mmap(-1, len(content), flags=flags)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.content = content

    @property
    def span(self) -> Span:
        return Span(os.getpid(), self._address, len(self._map), Kind.HOST)

    @property
    def content(self) -> bytes:
        return self._map[:]

    @content.setter
    def content(self, content: bytes) -> None:
        self._map[:] = content

    def change(self, offset: int, data: bytes) -> None:
        self._map[offset : offset + len(data)] = data

    def lose(self) -> None:
        """Make it empty, as it is after CRIU's restore."""
        self._map.madvise(mmap.MADV_DONTNEED)
