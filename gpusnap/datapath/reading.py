"""Reads packs with several threads."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, TypeAlias

from gpusnap.datapath.buffers import Buffer
from gpusnap.datapath.crew import Crew
from gpusnap.datapath.files import OpenPack, damaged, read_exactly
from gpusnap.datapath.records import CHUNK, FormatError
from gpusnap.datapath.saved import Located, Saved
from gpusnap.hookspecs import Progress
from gpusnap.native import Extent, put_extents

_BATCH = 1 << 20
"""Bytes of a pack that are read at once: they are still in the cache when they are used."""

_ROOM = _BATCH + CHUNK
"""Bytes of a buffer: the chunk that fills a batch may be one of the longest.

A buffer begins on a page. Where large objects of Python begin, 16 bytes behind the beginning of
one, the kernel's copies take two to three times as long (measured on AMD Zen 3).
"""

_RUN = 8 << 20
"""Bytes of a pack that C takes at once: so few calls that threads rarely wait for each other."""

Use: TypeAlias = Callable[[Located, memoryview], None]
"""Takes a chunk and its extent in the pack. Raises FormatError where the two do not fit."""

Worth: TypeAlias = Callable[[Located], int]
"""Tells what a chunk counts in progress, in bytes."""

ExtentOf: TypeAlias = Callable[[Located], Extent | None]
"""Tells what C can do with a chunk; None where only ``use`` will do."""

Refuse: TypeAlias = Callable[[Located, str], None]
"""Told of a chunk that cannot be used and why, in half a sentence; may raise to end all."""


def never(_located: Located) -> None:
    """C does nothing."""


class _Batch(NamedTuple):
    """Chunks that follow each other in a pack, with what C can do with them, if anything."""

    chunks: Sequence[Located]
    extents: Sequence[Extent]


def _cut(located: Sequence[Located], extent_of: ExtentOf) -> Iterator[_Batch]:
    begin, length = 0, 0
    extents: list[Extent] = []
    for end, one in enumerate(located):
        extent = extent_of(one)
        most = _BATCH if extent is None else _RUN
        if end > begin and (
            length >= most
            or (extent is None) is bool(extents)
            or not _adjacent(located[end - 1], one)
        ):
            yield _Batch(located[begin:end], extents)
            begin, length, extents = end, 0, []
        length += one.chunk.extent
        if extent is not None:
            extents.append(extent)
    if begin < len(located):
        yield _Batch(located[begin:], extents)


def _adjacent(one: Located, after: Located) -> bool:
    end = one.chunk.position + one.chunk.extent
    return one.pack == after.pack and end == after.chunk.position


class _Reading:
    """What the threads share."""

    def __init__(
        self, saved: Saved, batches: Iterator[_Batch], use: Use, worth: Worth, refuse: Refuse
    ) -> None:
        self.crew = Crew()
        self._saved = saved
        self._batches = batches
        self._use = use
        self._worth = worth
        self._refuse = refuse
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}

    def done(self) -> int:
        """What the chunks that were used are worth."""
        return sum(tuple(self._done.values()))

    def work(self, number: int) -> None:
        """Read and use one batch after another."""
        buffer = memoryview(Buffer(_ROOM).memory)
        self._done[number] = 0
        with closing(OpenPack(self._saved.path)) as packs:
            while (batch := self._take()) is not None:
                file = packs.open(batch.chunks[0].pack)
                if batch.extents:
                    self._put_batch(batch, file, buffer, number)
                else:
                    self._use_batch(batch.chunks, file, buffer, number)

    def _take(self) -> _Batch | None:
        with self._lock:
            return next(self._batches, None)

    def _put_batch(self, batch: _Batch, file: int, buffer: memoryview, number: int) -> None:
        """Have C do it; from a chunk on that it stops at, go step by step to find out why."""
        self.crew.check()
        done = put_extents(file, batch.extents, buffer)
        self._done[number] += sum(map(self._worth, batch.chunks[:done]))
        for one in batch.chunks[done:]:
            self._use_batch([one], file, buffer, number)

    def _use_batch(
        self, chunks: Sequence[Located], file: int, buffer: memoryview, number: int
    ) -> None:
        self.crew.check()
        with buffer[: _length(chunks)] as extents:
            try:
                read_exactly(file, extents, chunks[0].chunk.position)
            except OSError as error:
                refused = error
            else:
                self._use_all(chunks, extents, number)
                return
        if len(chunks) == 1:
            self._refuse(chunks[0], f"it cannot be read: {refused.strerror or refused}")
            return
        # One by one, to tell which of them the disk does not give back.
        for one in chunks:
            self._use_batch([one], file, buffer, number)

    def _use_all(self, chunks: Sequence[Located], extents: memoryview, number: int) -> None:
        at = 0
        for located in chunks:
            self.crew.check()
            end = at + located.chunk.extent
            try:
                self._use(located, extents[at:end])
            except FormatError as error:
                self._refuse(located, str(error))
            else:
                self._done[number] += self._worth(located)
            at = end


def _length(chunks: Sequence[Located]) -> int:
    last = chunks[-1].chunk
    return last.position + last.extent - chunks[0].chunk.position


def use_chunks(  # noqa: PLR0913 - one call, most by name
    saved: Saved,
    located: Sequence[Located],
    use: Use,
    *,
    worth: Worth,
    extent_of: ExtentOf = never,
    workers: int,
    progress: Progress,
    refuse: Refuse | None = None,
) -> None:
    """Read chunks, pack by pack from front to back, and have each used by some thread.

    Args:
        saved: What they are of.
        located: The chunks, by pack and rising position.
        use: What is done with a chunk that C cannot do, or that it stopped at.
        worth: What a chunk counts.
        extent_of: What C can do, which must come to the same; nothing by default.
        workers: Threads.
        progress: Called with what the chunks done are worth, and all of them.
        refuse: What is done about a chunk that cannot be used; by default the first ends all.

    Raises:
        IntegrityError: A pack is damaged; names it and the chunk.
    """

    def fail(one: Located, why: str) -> None:
        raise damaged(saved.path(one.pack), f"is damaged in {saved.describe(one)}: {why}")

    if not located:  # no threads for nothing
        return
    reading = _Reading(saved, _cut(located, extent_of), use, worth, refuse or fail)
    total = sum(map(worth, located))
    reading.crew.run(workers, reading.work, progress, total, reading.done)
