"""Room for packs, found while nobody waits for it.

In memory (tmpfs) a page takes nearly as long to be found as to be filled. While a device's memory
is being brought into the process, which takes seconds and one processor, the others can look for
pages. What else is written there meanwhile finds no less room than it needs.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpusnap.datapath.allowance import available
from gpusnap.datapath.files import create
from gpusnap.datapath.spans import PAGE

_STEP = 16 << 20
"""Bytes of one request; the kernel answers in milliseconds, so the end of it is soon noticed."""

_OF_MEMORY = 3
"""A part of what can be had: the devices' memory takes as much, something is left for others."""

_OF_ROOM = 2
"""A part of what is free on the file system: CRIU's images have to fit beside it."""


class Reserve:
    """Files with room in them that packs can be made of."""

    def __init__(self, folder: Path, count: int, size: int, free: int) -> None:
        """Plan what :meth:`growing` does.

        Args:
            folder: Where the files are until packs are made of them, on the same file system.
            count: How many.
            size: Bytes of all of them; less is taken where there is not three times as much memory,
                or twice as much room.
            free: Bytes of room on the file system.
        """
        self._folder = folder
        self._count = count
        size = min(size, available() // _OF_MEMORY, free // _OF_ROOM)
        self._share = size // count // PAGE * PAGE
        self._files: list[tuple[Path, int]] = []

    @contextmanager
    def growing(self) -> Iterator[None]:
        """Find room while the block runs, without a word where there is none."""
        stop = threading.Event()
        with suppress(OSError):
            for number in range(self._count):
                path = self._folder / f"room-{number}"
                self._files.append((path, create(path)))
        # It is to be no burden to what it goes on beside
        helpers = max(1, len(os.sched_getaffinity(0)) // 8)
        threads = [
            threading.Thread(target=self._grow, args=(self._files[number::helpers], stop))
            for number in range(helpers)
        ]
        started = []
        try:
            with suppress(RuntimeError):  # the system allows no more threads
                for thread in threads:
                    thread.start()
                    started.append(thread)
            yield
        finally:
            stop.set()
            for thread in started:
                thread.join()

    def _grow(self, files: list[tuple[Path, int]], stop: threading.Event) -> None:
        with suppress(OSError):  # full: whoever writes there says so
            for offset in range(0, self._share, _STEP):
                for _, descriptor in files:
                    if stop.is_set():
                        return
                    os.posix_fallocate(descriptor, offset, min(_STEP, self._share - offset))

    def create(self, path: Path) -> int:
        """Open a new private file for writing, with room if there is some left.

        Whoever writes it cuts off in the end what room is too much. Several threads may call it.

        Raises:
            OSError: It exists, or cannot be made.
        """
        while (file := self._next()) is not None:
            room, descriptor = file
            try:
                room.rename(path)
            except OSError:  # its folder was emptied
                os.close(descriptor)
            else:
                return descriptor
        return create(path)

    def drop(self) -> None:
        """Give back the room of which no packs were made."""
        while (file := self._next()) is not None:
            room, descriptor = file
            os.close(descriptor)
            with suppress(OSError):
                room.unlink()

    def _next(self) -> tuple[Path, int] | None:
        try:
            return self._files.pop()
        except IndexError:
            return None
