"""Where bytes come from: the memory of processes, cut into pieces."""

import threading
from collections.abc import Iterator

import msgspec

from gpusnap.datapath.records import CHUNK
from gpusnap.datapath.spans import Span
from gpusnap.native import crc32, nonzero_pages, populated_runs, read_process

WINDOW = 16 << 20
"""Bytes of a span whose page table is looked at in one go."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """At most :data:`CHUNK` bytes of memory that is there: number of the span, offset in it."""

    span: int
    offset: int
    length: int


class Data(msgspec.Struct, frozen=True, gc=False):
    """Pages without zeros among them that were copied into a buffer, with their CRC-32."""

    span: int
    offset: int
    at: int
    length: int
    crc: int


class Windows:
    """Hands out parts of spans to threads, spans of high priority first."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        self.spans = spans
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
        runs = populated_runs(span.pid, span.start + window.offset, window.length)
        for address, length in runs:
            yield from _cut(window.span, address - span.start, length)


def _cut(span: int, offset: int, length: int) -> Iterator[Piece]:
    """Cut at multiples of a chunk in the span, so that chunks keep their place over time."""
    end = offset + length
    while offset < end:
        stop = min(end, (offset // CHUNK + 1) * CHUNK)
        yield Piece(span, offset, stop - offset)
        offset = stop


def copy_piece(span: Span, piece: Piece, buffer: memoryview, at: int) -> list[Data]:
    """Copy a piece out of its process into a buffer; what of it is not zero."""
    view = buffer[at : at + piece.length]
    crc = read_process(span.pid, span.start + piece.offset, view)
    return [
        Data(
            piece.span,
            piece.offset + begin,
            at + begin,
            length,
            crc if length == piece.length else crc32(view[begin : begin + length]),
        )
        for begin, length in nonzero_pages(view)
    ]
