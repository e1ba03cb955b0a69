"""Where bytes come from: the memory of processes, or something else, cut into pieces."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from gpusnap.datapath.records import CHUNK
from gpusnap.datapath.spans import PAGE, Span
from gpusnap.native import (
    Copied,
    Outlet,
    Part,
    Sent,
    Stored,
    copy_straight,
    crc32,
    populated_runs,
    read_parts,
)

_BLOCK = 128 << 20
"""Bytes of a span whose page table is looked at in one go."""

_EMPTY = 4 << 30
"""The same where nothing was found: programs reserve far more addresses than they use."""

_MOST_AHEAD = 1 << 16
"""Runs of memory that are found before they are needed; each takes about a hundred bytes."""

_PAUSE_S = 0.02
"""How often who waits for more memory asks whether that was called off."""

MOST_RUNS = 16
"""Runs of pages that are not zero in a piece; with more of them the nearest become one.

That keeps the index small where memory is scattered: it has 80 bytes for each chunk.
"""


Runs: TypeAlias = Sequence[tuple[int, int]]
"""Parts of a span, ascending: offsets and lengths in bytes."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Memory that is there: number of the span, offset in it, and bytes."""

    span: int
    offset: int
    length: int


class Data(msgspec.Struct, frozen=True, gc=False):
    """Pages that were copied into a buffer and are not all zeros, with their CRC-32."""

    span: int
    offset: int
    at: int
    length: int
    crc: int


class Written(msgspec.Struct, frozen=True, gc=False):
    """Memory of a span that was copied straight into a pack, a chunk behind the other.

    Attributes:
        span: Number of the span.
        stored: The chunks, by their offsets in the span.
        position: Where in the pack the first is.
        length: Bytes of all.
    """

    span: int
    stored: Sequence[Stored]
    position: int
    length: int


class Wanted(NamedTuple):
    """A part of a span: an offset in it, and bytes."""

    span: Span
    offset: int
    length: int


class Source(Protocol):
    """Gives the bytes of spans, whatever they lie in; several threads use it at once."""

    def populated(self, span: Span, offset: int, length: int) -> list[tuple[int, int]]:
        """Whole pages of a part of a span outside of which all is zero: offsets and lengths."""

    def read(self, wanted: Sequence[Wanted], buffer: memoryview) -> list[Copied]:
        """Fill a buffer with whole pages, one part behind the other; what came of each."""

    def send(self, span: Span, runs: Runs, buffer: memoryview, outlet: Outlet) -> Sent:
        """Write runs of a span into a file as :func:`copy_straight` does, as far as can be."""


class ProcessMemory:
    """The memory of processes that stand still."""

    def populated(self, span: Span, offset: int, length: int) -> list[tuple[int, int]]:
        """What the page table tells of."""
        runs = populated_runs(span.pid, span.start + offset, length)
        return [(address - span.start, size) for address, size in runs]

    def read(self, wanted: Sequence[Wanted], buffer: memoryview) -> list[Copied]:
        """Copy out of the processes."""
        return read_parts([_part(each) for each in wanted], buffer)

    def send(self, span: Span, runs: Runs, buffer: memoryview, outlet: Outlet) -> Sent:
        """Copy out of a process into the file."""
        return copy_straight(span.pid, span.start, runs, buffer, outlet)


def _part(wanted: Wanted) -> Part:
    span, offset, length = wanted
    return Part(span.pid, span.start + offset, length)


class Window(NamedTuple):
    """What one thread takes at once: runs of memory in a part of a span.

    Attributes:
        runs: What is there, by rising offset.
        passed: Bytes that need no second look, holes included.
    """

    runs: tuple[Piece, ...]
    passed: int


class Windows:
    """Hands out spans to threads, those of high priority first.

    Attributes:
        spans: By their numbers.
        source: Gives their bytes.
    """

    def __init__(
        self,
        spans: tuple[Span, ...],
        source: Source,
        size: int,
        check: Callable[[], None] = lambda: None,
        *,
        more: bool = False,
    ) -> None:
        """Hand out parts of spans.

        Args:
            spans: The memory.
            source: Gives its bytes.
            size: Most bytes of a part.
            check: Called now and then by whoever looks ahead or waits; what it raises ends that.
            more: Whether :meth:`add` will be called: until then threads wait at the end.
        """
        self.spans = spans
        self.source = source
        self._size = size
        self._check = check
        self._more = more
        self._windows = self._of(range(len(spans)))
        self._ready: deque[Window] = deque()
        self._looking = threading.Condition()

    def add(self, spans: Sequence[Span]) -> None:
        """Hand out these behind all others; there will be no more of them."""
        with self._looking:
            begin = len(self.spans)
            self.spans = (*self.spans, *spans)
            self._windows = chain(self._windows, self._of(range(begin, len(self.spans))))
            self._more = False
            self._looking.notify_all()

    def _of(self, numbers: Iterable[int]) -> Iterator[Window]:
        for number in sorted(numbers, key=lambda number: -self.spans[number].priority):
            span, begin, block = self.spans[number], 0, _BLOCK
            while begin < span.length:
                end = min(begin + block // self._size * self._size, span.length)
                runs = self.source.populated(span, begin, end - begin)
                yield from _windows(number, runs, begin, end, self._size)
                begin, block = end, _BLOCK if runs else min(2 * block, _EMPTY)

    @property
    def count(self) -> int:
        """How many of them there can be in all."""
        return sum(-(-span.length // self._size) for span in self.spans)

    def look_ahead(self) -> None:
        """Find windows before they are taken, as many as take little memory.

        Where memory is scattered it takes the interpreter long to find them, and meanwhile the
        threads would wait for each other; while they copy memory that is not, it has time.
        """
        runs = 0
        while runs < _MOST_AHEAD:
            self._check()
            with self._looking:
                window = next(self._windows, None)
                if window is not None:
                    self._ready.append(window)
                    runs += len(window.runs)
                elif not self._awaits_more():
                    return

    def take(self) -> Window | None:
        """The next one; None at the end."""
        with suppress(IndexError):
            return self._ready.popleft()
        with self._looking:
            while True:
                # What was found while this thread waited, unless another was faster
                with suppress(IndexError):
                    return self._ready.popleft()
                window = next(self._windows, None)
                if window is not None or not self._awaits_more():
                    return window
                self._check()

    def _awaits_more(self) -> bool:
        """Wait a while for what is to come, if anything is."""
        if self._more:
            self._looking.wait(_PAUSE_S)
            return True
        return False


def _windows(
    span: int, runs: Sequence[tuple[int, int]], begin: int, end: int, size: int
) -> Iterator[Window]:
    """Cut what is there at multiples of a size."""
    taken: list[Piece] = []
    reached = begin
    for piece in (piece for run in runs for piece in cut(span, *run, size)):
        start = piece.offset // size * size
        if taken and start > taken[0].offset:
            yield Window(tuple(taken), start - reached)
            taken, reached = [], start
        taken.append(piece)
    yield Window(tuple(taken), end - reached)


def cut(span: int, offset: int, length: int, size: int) -> Iterator[Piece]:
    """Cut at multiples of a size in the span, so that cuts keep their place over time."""
    end = offset + length
    while offset < end:
        stop = min(end, (offset // size + 1) * size)
        yield Piece(span, offset, stop - offset)
        offset = stop


class Pieces:
    """What one thread has taken and not copied yet, in order.

    Attributes:
        window: Number of the window that was taken last, from 1 on.
    """

    def __init__(self, windows: Windows) -> None:
        self.window = 0
        self._windows = windows
        self._runs: list[Piece] = []
        self._passed = 0
        self._ahead = 0

    def run(self) -> Piece | None:
        """The memory that comes next, as far as it is in one piece; None at the end."""
        while not self._runs:
            self._passed += self._ahead
            self._ahead = 0
            window = self._windows.take()
            if window is None:
                return None
            self._runs = [*reversed(window.runs)]
            self._ahead = window.passed
            self.window += 1
        return self._runs[-1]

    def peek(self) -> Piece | None:
        """The next piece, of :data:`CHUNK` bytes at most; None at the end."""
        run = self.run()
        return None if run is None else next(cut(run.span, run.offset, run.length, CHUNK))

    def runs(self) -> Sequence[Piece]:
        """All that was taken, in order: of one span, and there is some after :meth:`run`."""
        return self._runs[::-1]

    def skip(self, length: int) -> None:
        """Go past bytes of what was taken."""
        while length:
            run = self._runs.pop()
            if length < run.length:
                self._runs.append(Piece(run.span, run.offset + length, run.length - length))
            length -= min(length, run.length)

    def take_passed(self) -> int:
        """Bytes of spans that were gone through since the last call, holes included."""
        passed, self._passed = self._passed, 0
        return passed

    def samples(self, count: int, size: int) -> list[Wanted]:
        """Places apart by an equal stride, in what was taken and comes next.

        Args:
            count: How many there are at most.
            size: Most bytes of one, a multiple of a page.
        """
        runs = self.runs()
        ends = [*accumulate(run.length for run in runs)]
        total = ends[-1] if ends else 0
        stride = max(size, (total - size) // max(1, count - 1) // PAGE * PAGE)
        found = []
        for at in range(0, total, stride)[:count]:
            number = next(number for number, end in enumerate(ends) if at < end)
            run, left = runs[number], ends[number] - at
            offset = run.offset + run.length - left
            found.append(Wanted(self._windows.spans[run.span], offset, min(size, left)))
        return found


def copy_pieces(windows: Windows, pieces: Sequence[Piece], buffer: memoryview) -> list[Data]:
    """Copy pieces into a buffer, one behind the other, and find what of them is not zero."""
    wanted = [Wanted(windows.spans[each.span], each.offset, each.length) for each in pieces]
    found: list[Data] = []
    at = 0
    for piece, copied in zip(pieces, windows.source.read(wanted, buffer), strict=True):
        found += _found(piece, copied, buffer, at)
        at += piece.length
    return found


def _found(piece: Piece, copied: Copied, buffer: memoryview, at: int) -> Iterator[Data]:
    """What is not zero of a piece that is in a buffer."""
    for begin, length in _joined(copied.runs):
        memory = buffer[at + begin : at + begin + length]
        crc = copied.crc if length == piece.length else crc32(memory)
        yield Data(piece.span, piece.offset + begin, at + begin, length, crc)


class Passed(NamedTuple):
    """How far it went straight.

    Attributes:
        length: Bytes that need no second look; the piece behind them may be copied another way.
        written: What of them is in the pack.
    """

    length: int
    written: Written


def send_runs(
    windows: Windows, runs: Sequence[Piece], buffer: memoryview, outlet: Outlet
) -> Passed:
    """Copy memory straight into a pack, as far as the source can.

    Args:
        windows: Where it is from.
        runs: The memory, all of one span.
        buffer: Room for one chunk.
        outlet: The pack.
    """
    span = runs[0].span
    wanted = [(run.offset, run.length) for run in runs]
    length, stored = windows.source.send(windows.spans[span], wanted, buffer, outlet)
    written = sum(each.length for each in stored)
    return Passed(length, Written(span, stored, outlet.position, written))


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most :data:`MOST_RUNS` runs, between which the widest gaps are left."""
    if len(runs) <= MOST_RUNS:
        return runs
    gaps = [after - begin - length for (begin, length), (after, _) in pairwise(runs)]
    widest = sorted(range(len(gaps)), key=gaps.__getitem__)[-(MOST_RUNS - 1) :]
    bounds = [0, *(number + 1 for number in sorted(widest)), len(runs)]
    groups = (runs[first:end] for first, end in pairwise(bounds))
    return [(group[0][0], sum(group[-1]) - group[0][0]) for group in groups]
