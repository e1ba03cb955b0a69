"""From packs back into the memory of processes."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from gpusnap.datapath.checker import MISMATCH
from gpusnap.datapath.codecs import decode
from gpusnap.datapath.reading import use_chunks
from gpusnap.datapath.records import Chunk, FormatError
from gpusnap.datapath.saved import Located, Saved
from gpusnap.datapath.spans import Span
from gpusnap.errors import TargetError
from gpusnap.hookspecs import Progress
from gpusnap.native import crc32, nonzero_pages, read_process, write_process

Pids: TypeAlias = Callable[[int], int]
"""Tells by a PID of the snapshot which process here is meant."""


def _same(pid: int) -> int:
    return pid


class Filler:
    """Writes what a :class:`~gpusnap.datapath.Saver` left in a folder."""

    def __init__(self, folder: Path, *, workers: int | None = None) -> None:
        """Read the index and compare it with the packs' lengths.

        Args:
            folder: With packs and index.
            workers: Threads; None for one a CPU.

        Raises:
            IntegrityError: Index or packs are damaged or missing.
            IncompatibleError: A newer gpusnap wrote them.
            PrivilegeError: They may not be read.
        """
        self._workers = workers or len(os.sched_getaffinity(0))
        self._saved = Saved(folder)
        self._saved.require_packs()
        self._wanted = [each for each in self._saved.located() if each.places]

    @property
    def spans(self) -> tuple[Span, ...]:
        """The memory that was saved, in the order in which it was given."""
        return self._saved.spans

    @property
    def raw_bytes(self) -> int:
        """Bytes that will be written into the processes."""
        return sum(each.chunk.length * len(each.places) for each in self._wanted)

    def fill(self, progress: Progress, *, verify: bool = False, pids: Pids = _same) -> None:
        """Write all that was saved into processes whose memory is empty.

        A chunk is written only after its content was found to be what was saved. After an
        exception the processes hold a part of it only and must not run.

        Args:
            progress: Called with bytes of memory done and in all.
            verify: Read everything back and compare it.
            pids: Which process is meant by a PID of the snapshot.

        Raises:
            IntegrityError: A pack is damaged; names it and the chunk.
            TargetError: A process ended, or cannot be written to.
        """
        use_chunks(
            self._saved,
            self._wanted,
            partial(self._put, verify=verify, pids=pids),
            workers=self._workers,
            progress=progress,
            total=self.raw_bytes,
        )

    def _put(self, located: Located, extent: memoryview, *, verify: bool, pids: Pids) -> int:
        chunk = located.chunk
        data = decode(chunk.codec, extent[: chunk.stored], chunk.length)
        if crc32(data) != chunk.crc:
            raise FormatError(MISMATCH)
        for place in located.places:
            span = self.spans[place.span]
            address = span.start + place.offset
            pid = pids(span.pid)
            # Where runs were joined zeros lie between them: those pages stay untouched.
            for begin, length in nonzero_pages(data):
                write_process(pid, address + begin, data[begin : begin + length])
            if verify:
                _read_back(pid, address, chunk)
        return chunk.length * len(located.places)


def _read_back(pid: int, address: int, chunk: Chunk) -> None:
    buffer = memoryview(bytearray(chunk.length))
    if read_process(pid, address, buffer) != chunk.crc:
        text = f"Memory of process {pid} at {address:#x} is not what was written into it"
        raise TargetError(text, cure="Nothing else may change the process meanwhile")
