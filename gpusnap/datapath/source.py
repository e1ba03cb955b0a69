"""Where bytes come from: the memory of processes, or something else, cut into pieces."""

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import msgspec

from gpusnap.datapath.records import CHUNK
from gpusnap.datapath.spans import Span
from gpusnap.native import Copied, Outlet, Part, crc32, populated_runs, read_parts

WINDOW = 16 << 20
"""Bytes of a span whose page table is looked at in one go."""

MOST_RUNS = 16
"""Runs of pages that are not zero in a piece; with more of them the nearest become one.

That keeps the index small where memory is scattered: it has 80 bytes for each chunk.
"""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """At most :data:`CHUNK` bytes of memory that is there: number of the span, offset in it."""

    span: int
    offset: int
    length: int


class Data(msgspec.Struct, frozen=True, gc=False):
    """Pages that were copied and are not all zeros, with their CRC-32.

    Attributes:
        at: Where in the buffer they are, unless they were written at once.
        position: Where in its pack what was written at once is.
    """

    span: int
    offset: int
    at: int
    length: int
    crc: int
    position: int | None = None


class Wanted(NamedTuple):
    """A part of a span: an offset in it, and bytes."""

    span: Span
    offset: int
    length: int


class Source(Protocol):
    """Gives the bytes of spans, whatever they lie in; several threads use it at once."""

    def populated(self, span: Span, offset: int, length: int) -> list[tuple[int, int]]:
        """Whole pages of a part of a span outside of which all is zero: offsets and lengths."""

    def read(
        self, wanted: Sequence[Wanted], buffer: memoryview, outlet: Outlet | None
    ) -> list[Copied]:
        """Fill a buffer with whole pages, one part behind the other; what came of each.

        What it can, it writes to the outlet instead.
        """


class ProcessMemory:
    """The memory of processes that stand still."""

    def populated(self, span: Span, offset: int, length: int) -> list[tuple[int, int]]:
        """What the page table tells of."""
        runs = populated_runs(span.pid, span.start + offset, length)
        return [(address - span.start, size) for address, size in runs]

    def read(
        self, wanted: Sequence[Wanted], buffer: memoryview, outlet: Outlet | None
    ) -> list[Copied]:
        """Copy out of the processes."""
        parts = [Part(span.pid, span.start + offset, length) for span, offset, length in wanted]
        return read_parts(parts, buffer, outlet)


class Windows:
    """Hands out parts of spans to threads, spans of high priority first.

    Attributes:
        spans: By their numbers.
        source: Gives their bytes.
    """

    def __init__(self, spans: tuple[Span, ...], source: Source) -> None:
        self.spans = spans
        self.source = source
        self._windows = self._all()
        self._lock = threading.Lock()

    def _all(self) -> Iterator[Piece]:
        order = sorted(range(len(self.spans)), key=lambda number: -self.spans[number].priority)
        for number in order:
            length = self.spans[number].length
            for offset in range(0, length, WINDOW):
                yield Piece(number, offset, min(WINDOW, length - offset))

    @property
    def count(self) -> int:
        """How many parts there are in all."""
        return sum(-(-span.length // WINDOW) for span in self.spans)

    def take(self) -> Piece | None:
        """The next part; None at the end."""
        with self._lock:
            return next(self._windows, None)


class Pieces:
    """The pieces of one thread, in order, with a look at the next one."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._pieces = self._all()
        self._next: Piece | None = None
        self._passed = 0

    def peek(self) -> Piece | None:
        """The next piece; None at the end."""
        if self._next is None:
            self._next = next(self._pieces, None)
        return self._next

    def skip(self) -> None:
        """Go past the piece that :meth:`peek` showed."""
        self._next = None

    def take_passed(self) -> int:
        """Bytes of spans that were gone through since the last call, holes included."""
        passed, self._passed = self._passed, 0
        return passed

    def _all(self) -> Iterator[Piece]:
        while (window := self._windows.take()) is not None:
            yield from self._populated(window)
            self._passed += window.length

    def _populated(self, window: Piece) -> Iterator[Piece]:
        span = self._windows.spans[window.span]
        runs = self._windows.source.populated(span, window.offset, window.length)
        for offset, length in runs:
            yield from _cut(window.span, offset, length)


def _cut(span: int, offset: int, length: int) -> Iterator[Piece]:
    """Cut at multiples of a chunk in the span, so that chunks keep their place over time."""
    end = offset + length
    while offset < end:
        stop = min(end, (offset // CHUNK + 1) * CHUNK)
        yield Piece(span, offset, stop - offset)
        offset = stop


def copy_pieces(
    windows: Windows, pieces: Sequence[Piece], buffer: memoryview, outlet: Outlet | None = None
) -> list[Data]:
    """Copy pieces into a buffer, or to an outlet, one behind the other; what is not zero."""
    wanted = [Wanted(windows.spans[each.span], each.offset, each.length) for each in pieces]
    found: list[Data] = []
    at = 0
    for piece, copied in zip(pieces, windows.source.read(wanted, buffer, outlet), strict=True):
        if copied.position is not None:
            whole = Data(piece.span, piece.offset, 0, piece.length, copied.crc, copied.position)
            found.append(whole)
            continue
        found += (
            Data(
                piece.span,
                piece.offset + begin,
                at + begin,
                length,
                copied.crc
                if length == piece.length
                else crc32(buffer[at + begin : at + begin + length]),
            )
            for begin, length in _joined(copied.runs)
        )
        at += piece.length
    # First what is in the pack, whose chunks are told of by rising position
    return sorted(found, key=lambda data: data.position is None)


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most :data:`MOST_RUNS` runs, between which the widest gaps are left."""
    if len(runs) <= MOST_RUNS:
        return runs
    gaps = [after - begin - length for (begin, length), (after, _) in pairwise(runs)]
    widest = sorted(range(len(gaps)), key=gaps.__getitem__)[-(MOST_RUNS - 1) :]
    bounds = [0, *(number + 1 for number in sorted(widest)), len(runs)]
    groups = (runs[first:end] for first, end in pairwise(bounds))
    return [(group[0][0], sum(group[-1]) - group[0][0]) for group in groups]
