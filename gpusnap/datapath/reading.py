"""Reads packs with several threads."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeAlias

from gpusnap.datapath.crew import Crew
from gpusnap.datapath.files import OpenPack, damaged, read_exactly
from gpusnap.datapath.records import FormatError
from gpusnap.datapath.saved import Located, Saved
from gpusnap.hookspecs import Progress

_BATCH = 1 << 20
"""Bytes of a pack that are read at once: they are still in the cache when they are used."""

Use: TypeAlias = Callable[[Located, memoryview], int]
"""Takes a chunk and its extent in the pack; gives the bytes that are done with it for progress.

Raises FormatError where the two do not fit.
"""

Refuse: TypeAlias = Callable[[Located, str], None]
"""Told of a chunk that cannot be used and why, in half a sentence; may raise to end all."""

_Batch: TypeAlias = Sequence[Located]
"""Chunks that follow each other in a pack."""


def _cut(located: Sequence[Located]) -> Iterator[_Batch]:
    begin, length = 0, 0
    for end, one in enumerate(located, 1):
        length += one.chunk.extent
        if length >= _BATCH or end == len(located) or not _adjacent(one, located[end]):
            yield located[begin:end]
            begin, length = end, 0


def _adjacent(one: Located, after: Located) -> bool:
    end = one.chunk.position + one.chunk.extent
    return one.pack == after.pack and end == after.chunk.position


class _Reading:
    """What the threads share."""

    def __init__(self, saved: Saved, located: Sequence[Located], use: Use, refuse: Refuse) -> None:
        self.crew = Crew()
        self._saved = saved
        self._batches = _cut(located)
        self._use = use
        self._refuse = refuse
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}

    def done(self) -> int:
        """What the uses gave, added up."""
        return sum(tuple(self._done.values()))

    def work(self, number: int) -> None:
        """Read and use one batch after another."""
        buffer = memoryview(bytearray())
        self._done[number] = 0
        with closing(OpenPack(self._saved.path)) as packs:
            while (batch := self._take()) is not None:
                file = packs.open(batch[0].pack)
                length = _length(batch)
                if length > len(buffer):
                    buffer = memoryview(bytearray(length))
                self._use_batch(batch, file, buffer[:length], number)

    def _take(self) -> _Batch | None:
        with self._lock:
            return next(self._batches, None)

    def _use_batch(self, batch: _Batch, file: int, buffer: memoryview, number: int) -> None:
        self.crew.check()
        try:
            read_exactly(file, buffer, batch[0].chunk.position)
        except OSError as error:
            if len(batch) == 1:
                self._refuse(batch[0], f"it cannot be read: {error.strerror or error}")
                return
            # One by one, to tell which of them the disk does not give back.
            for one in batch:
                self._use_batch([one], file, buffer[: one.chunk.extent], number)
            return
        self._use_all(batch, buffer, number)

    def _use_all(self, batch: _Batch, buffer: memoryview, number: int) -> None:
        at = 0
        for located in batch:
            self.crew.check()
            end = at + located.chunk.extent
            try:
                self._done[number] += self._use(located, buffer[at:end])
            except FormatError as error:
                self._refuse(located, str(error))
            at = end


def _length(batch: _Batch) -> int:
    last = batch[-1].chunk
    return last.position + last.extent - batch[0].chunk.position


def use_chunks(  # noqa: PLR0913 - one call, most by name
    saved: Saved,
    located: Sequence[Located],
    use: Use,
    *,
    workers: int,
    progress: Progress,
    total: int,
    refuse: Refuse | None = None,
) -> None:
    """Read chunks, pack by pack from front to back, and have each used by some thread.

    Args:
        saved: What they are of.
        located: The chunks, by pack and rising position.
        use: What is done with a chunk.
        workers: Threads.
        progress: Called with what the uses gave, added up, and ``total``.
        total: What they will give in all.
        refuse: What is done about a chunk that cannot be used; by default the first ends all.

    Raises:
        IntegrityError: A pack is damaged; names it and the chunk.
    """

    def fail(one: Located, why: str) -> None:
        raise damaged(saved.path(one.pack), f"is damaged in {saved.describe(one)}: {why}")

    reading = _Reading(saved, located, use, refuse or fail)
    reading.crew.start(workers, reading.work)
    reading.crew.watch(progress, total, reading.done, lambda: reading.crew.ended)
