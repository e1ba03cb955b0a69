"""Compares the chunks of two saved memories that hold the same addresses, with several threads."""

import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from gpusnap.datapath.codecs import content
from gpusnap.datapath.crew import Crew
from gpusnap.datapath.files import OpenPack, damage, damaged, read_exactly
from gpusnap.datapath.records import NO_IDENTITY, FormatError
from gpusnap.datapath.saved import Located, Saved
from gpusnap.datapath.spans import PAGE, Span
from gpusnap.hookspecs import Progress

_WINDOW = 8 << 20
"""Bytes of address space that a thread compares in one go."""

_START = attrgetter("start")


class Room(NamedTuple):
    """Where positions count: the memory of a process, or the image file of that name."""

    pid: int
    image: str


class Range(NamedTuple):
    """Some bytes from one position to another."""

    room: Room
    start: int
    end: int

    @property
    def length(self) -> int:
        """How many bytes."""
        return self.end - self.start


def room_of(saved: Saved, span: Span) -> Room:
    """Where a span is; images of one name are one file, whatever their numbers are."""
    return Room(0, saved.images[span.pid].name) if span.of_image else Room(span.pid, "")


class _Piece(NamedTuple):
    """A chunk at the addresses where its memory was."""

    start: int
    end: int
    located: Located


class _Pieces:
    """What is stored, by where it was."""

    def __init__(self, saved: Saved) -> None:
        self._pieces: defaultdict[Room, list[_Piece]] = defaultdict(list)
        rooms = [room_of(saved, span) for span in saved.spans]
        for located in saved.located():
            for place in located.places:
                span = saved.spans[place.span]
                start = span.start + place.offset
                # The part of a file may end within a page.
                end = min(start + located.chunk.length, span.end)
                self._pieces[rooms[place.span]].append(_Piece(start, end, located))
        for pieces in self._pieces.values():
            pieces.sort(key=_START)

    def within(self, where: Range) -> Sequence[_Piece]:
        """By rising addresses; the first and the last may reach out."""
        found = self._pieces.get(where.room, [])
        first = bisect_right(found, where.start, key=_START)
        if first > 0 and found[first - 1].end > where.start:
            first -= 1
        return found[first : bisect_right(found, where.end - 1, key=_START)]


class _Reader:
    """Decodes chunks for one thread, and keeps the last one."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved
        self._packs = OpenPack(saved.path)
        self._last: tuple[Located, bytes] | None = None

    def read(self, piece: _Piece | None, start: int, end: int) -> bytes:
        """The memory between two addresses; zeros where there is no chunk of it."""
        if piece is None:
            return bytes(end - start)
        if self._last is None or self._last[0] is not piece.located:
            self._last = piece.located, self._decode(piece.located)
        return self._last[1][start - piece.start : end - piece.start]

    def _decode(self, located: Located) -> bytes:
        path, chunk = self._saved.path(located.pack), located.chunk
        file = self._packs.open(located.pack)
        stored = memoryview(bytearray(chunk.stored))
        with damage(path):
            read_exactly(file, stored, chunk.position)
        try:
            return bytes(content(chunk, stored))
        except FormatError as error:
            words = f"is damaged in {self._saved.describe(located)}: {error}"
            raise damaged(path, words) from error

    def close(self) -> None:
        """Close the pack that is open."""
        self._packs.close()


class _Comparing:
    """What the threads share."""

    def __init__(self, a: Saved, b: Saved, ranges: Sequence[Range]) -> None:
        self.crew = Crew()
        self.changed: defaultdict[Range, int] = defaultdict(int)
        self.done = 0
        self._saved = a, b
        self._pieces = _Pieces(a), _Pieces(b)
        windows = [(where, window) for where in ranges for window in self._windows(where)]
        self.total = sum(window.end - window.start for _, window in windows)
        self._left = iter(windows)
        self._lock = threading.Lock()

    def _windows(self, where: Range) -> Iterator[Range]:
        """The parts of a range of which anything is stored: elsewhere both hold zeros."""
        numbers = {
            number
            for pieces in self._pieces
            for piece in pieces.within(where)
            for number in range(piece.start // _WINDOW, (piece.end - 1) // _WINDOW + 1)
        }
        for number in sorted(numbers):
            start = max(where.start, number * _WINDOW)
            end = min(where.end, (number + 1) * _WINDOW)
            if start < end:
                yield Range(where.room, start, end)

    def work(self, _number: int) -> None:
        """Compare one window after another."""
        a, b = self._saved
        with closing(_Reader(a)) as first, closing(_Reader(b)) as second:
            while (task := self._take()) is not None:
                where, window = task
                changed = self._compare(window, first, second)
                with self._lock:
                    self.changed[where] += changed
                    self.done += window.end - window.start

    def _take(self) -> tuple[Range, Range] | None:
        with self._lock:
            return next(self._left, None)

    def _compare(self, window: Range, first: _Reader, second: _Reader) -> int:
        a, b = (pieces.within(window) for pieces in self._pieces)
        edges = {window.start, window.end}
        for piece in (*a, *b):
            edges |= {max(piece.start, window.start), min(piece.end, window.end)}
        changed = 0
        for start, end in pairwise(sorted(edges)):
            self.crew.check()
            one, other = _covering(a, start), _covering(b, start)
            if not _known_same(one, other):
                pages = first.read(one, start, end), second.read(other, start, end)
                changed += _changed_pages(*pages)
        return changed


def _covering(pieces: Sequence[_Piece], address: int) -> _Piece | None:
    number = bisect_right(pieces, address, key=_START) - 1
    return pieces[number] if number >= 0 and pieces[number].end > address else None


def _known_same(a: _Piece | None, b: _Piece | None) -> bool:
    """Whether two pieces are the same, as far as can be told without reading them."""
    if a is None or b is None:
        return a is b
    one, other = a.located.chunk, b.located.chunk
    if (a.start, one.length, one.crc) != (b.start, other.length, other.crc):
        return False
    return NO_IDENTITY in {one.identity, other.identity} or one.identity == other.identity


def _changed_pages(a: bytes, b: bytes) -> int:
    if a == b:
        return 0
    # Compares in place: of two slices both would be copied.
    pages = (b[at : at + PAGE] for at in range(0, len(b), PAGE))
    return sum(
        len(page) for number, page in enumerate(pages) if not a.startswith(page, number * PAGE)
    )


def changed_bytes(
    a: Saved, b: Saved, ranges: Sequence[Range], *, workers: int, progress: Progress
) -> Mapping[Range, int]:
    """Count the bytes in pages that differ.

    Chunks whose addresses, lengths and checksums agree count as the same unread, unless both
    have an identity and these differ.

    Args:
        a: A saved memory.
        b: Another one.
        ranges: Memory that both have, without overlap.
        workers: Threads; each holds one chunk of both.
        progress: Called with bytes compared and bytes in all.

    Raises:
        IntegrityError: A pack is damaged; names it and the chunk.
        PrivilegeError: It may not be read.
    """
    comparing = _Comparing(a, b, ranges)
    comparing.crew.run(workers, comparing.work, progress, comparing.total, lambda: comparing.done)
    return comparing.changed
