"""Reads packs with several threads."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from gpusnap.datapath.crew import Crew
from gpusnap.datapath.files import open_regular, read_exactly, stored
from gpusnap.datapath.records import Chunk, FormatError, NewerError, pack_name
from gpusnap.errors import IncompatibleError, IntegrityError
from gpusnap.hookspecs import Progress

_BATCH = 1 << 20
"""Bytes of a pack that are read at once: they are still in the cache when they are used."""

_CURE = "Restore another snapshot"

Use: TypeAlias = Callable[[Chunk, memoryview], None]
"""Takes a chunk and its extent in the pack; raises FormatError where they do not fit."""


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Turn what is wrong with a file inside the block into a sentence about it."""
    try:
        with stored(path):
            yield
    except NewerError as error:
        text = f"{path} was written by a newer gpusnap: {error}"
        raise IncompatibleError(text, cure="Upgrade gpusnap") from error
    except FormatError as error:
        raise IntegrityError(f"{path} is damaged: {error}", cure=_CURE) from error


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a file that is open inside the block, where damage becomes a sentence."""
    with damage(path):
        descriptor = open_regular(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


class _Batch(msgspec.Struct, frozen=True, gc=False):
    """Chunks that follow each other in a pack."""

    pack: int
    chunks: Sequence[Chunk]


def _cut(chunks: Sequence[Chunk], pack: int) -> Iterator[_Batch]:
    begin, length = 0, 0
    for end, chunk in enumerate(chunks, 1):
        length += chunk.extent
        if length >= _BATCH or end == len(chunks):
            yield _Batch(pack, chunks[begin:end])
            begin, length = end, 0


class _Reading:
    """What the threads share."""

    def __init__(self, paths: Sequence[Path], batches: Iterator[_Batch], use: Use) -> None:
        self.crew = Crew()
        self._paths = paths
        self._batches = batches
        self._use = use
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}

    def done(self) -> int:
        """Bytes of memory whose chunks were used."""
        return sum(tuple(self._done.values()))

    def work(self, number: int) -> None:
        """Read and use one batch after another."""
        buffer = memoryview(bytearray())
        self._done[number] = 0
        with ExitStack() as stack:
            files: dict[int, int] = {}
            while (batch := self._take()) is not None:
                if batch.pack not in files:
                    files[batch.pack] = stack.enter_context(opened(self._paths[batch.pack]))
                first, last = batch.chunks[0], batch.chunks[-1]
                length = last.position + last.extent - first.position
                if length > len(buffer):
                    buffer = memoryview(bytearray(length))
                with damage(self._paths[batch.pack]):
                    read_exactly(files[batch.pack], buffer[:length], first.position)
                self._use_all(batch, buffer, number)

    def _take(self) -> _Batch | None:
        with self._lock:
            return next(self._batches, None)

    def _use_all(self, batch: _Batch, buffer: memoryview, number: int) -> None:
        first = batch.chunks[0].position
        for chunk in batch.chunks:
            self.crew.check()
            at = chunk.position - first
            try:
                self._use(chunk, buffer[at : at + chunk.extent])
            except FormatError as error:
                path = self._paths[batch.pack]
                text = f"{path} is damaged in the chunk at {chunk.position}: {error}"
                raise IntegrityError(text, cure=_CURE) from error
            self._done[number] += chunk.length


def use_chunks(
    folder: Path, tables: Sequence[Sequence[Chunk]], workers: int, progress: Progress, use: Use
) -> None:
    """Read packs from front to back and have every chunk used by some thread.

    Args:
        folder: Where the packs are.
        tables: For each pack its chunks by rising position, without gaps.
        workers: Threads.
        progress: Called with bytes of memory done and in all.
        use: What is done with a chunk.

    Raises:
        IntegrityError: A pack is damaged; names it and the chunk.
    """
    batches = (batch for pack, chunks in enumerate(tables) for batch in _cut(chunks, pack))
    paths = [folder / pack_name(number) for number in range(len(tables))]
    reading = _Reading(paths, batches, use)
    total = sum(chunk.length for chunks in tables for chunk in chunks)
    reading.crew.start(workers, reading.work)
    reading.crew.watch(progress, total, reading.done, lambda: reading.crew.ended)
