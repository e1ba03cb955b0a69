"""Writing past the page cache (O_DIRECT), which takes whole pages that lie on whole pages."""

import fcntl
import os
from collections.abc import Sequence
from itertools import groupby

from gpusnap.datapath.buffers import Buffer


def set_direct(descriptor: int, *, on: bool) -> None:
    """Have what is written to an open file from now on go past the page cache, or through it.

    Raises:
        OSError: The file system refuses it.
    """
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    changed = flags | os.O_DIRECT if on else flags & ~os.O_DIRECT
    fcntl.fcntl(descriptor, fcntl.F_SETFL, changed)


class Staging:
    """Room on whole pages for bytes that lie anywhere."""

    def __init__(self, size: int) -> None:
        """Take so many bytes, which no call of :meth:`align` may exceed.

        Raises:
            GpusnapError: There are not so many.
        """
        self._room = memoryview(Buffer(size).memory)

    def align(self, parts: Sequence[memoryview | bytes]) -> list[memoryview | bytes]:
        """The same bytes in parts that can be written past the page cache.

        Args:
            parts: Views are of buffers, which lie on whole pages, and are kept. What is made of
                bytes is copied; as many of those as stand together are whole pages.
        """
        aligned: list[memoryview | bytes] = []
        end = 0
        for loose, group in groupby(parts, key=lambda part: isinstance(part, bytes)):
            if not loose:
                aligned += group
                continue
            begin = end
            for part in group:
                self._room[end : end + len(part)] = part
                end += len(part)
            aligned.append(self._room[begin:end])
        return aligned
