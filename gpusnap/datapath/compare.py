"""What differs between two saved memories, to the page."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpusnap.datapath.pairs import Range, Room, changed_bytes, room_of
from gpusnap.datapath.saved import Saved
from gpusnap.datapath.spans import Kind
from gpusnap.hookspecs import Progress

_START = attrgetter("start")


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """How a range of a process's memory, or of an image file, differs between two snapshots.

    All figures are bytes. Where spans of the two overlap without being the same, they are one
    range. ``equal``, ``changed``, ``only_a`` and ``only_b`` add up to ``length``.

    Attributes:
        pid: The process; None for an image.
        image: Name of the image file; None for a process.
        start: Address of the first byte, in an image its position.
        length: Bytes from there to the end.
        kind: What it holds.
        equal: Pages that are the same, also where both are zero.
        changed: Pages that are not.
        only_a: What only the first snapshot has.
        only_b: What only the second has.
    """

    pid: int | None
    image: str | None = None
    start: int
    length: int
    kind: Kind
    equal: int
    changed: int
    only_a: int
    only_b: int

    @property
    def different(self) -> int:
        """Bytes that are not the same in both."""
        return self.length - self.equal


class _Whole(NamedTuple):
    """A range, and what it holds."""

    range: Range
    kind: Kind


class _Wholes:
    """Ranges that spans of either side are parts of, and byte counts of each."""

    def __init__(self, spans: Iterable[_Whole]) -> None:
        self.found = _joined(spans)
        self._keys = [(whole.range.room, whole.range.start) for whole in self.found]

    def add_up(self, parts: Iterable[tuple[Range, int]]) -> list[int]:
        """For each whole the bytes of its parts, which are ranges and their bytes."""
        sums = [0] * len(self.found)
        for part, count in parts:
            sums[bisect_right(self._keys, (part.room, part.start)) - 1] += count
        return sums


def _ranges(saved: Saved | None) -> list[_Whole]:
    if saved is None:
        return []
    return [
        _Whole(Range(room_of(saved, span), span.start, span.end), span.kind) for span in saved.spans
    ]


def _joined(spans: Iterable[_Whole]) -> list[_Whole]:
    """Ranges as they are, those that overlap as one."""
    found: list[_Whole] = []
    for (room, start, end), kind in sorted(spans):
        last = found[-1].range if found else None
        if last is not None and last.room == room and start < last.end:
            found[-1] = _Whole(last._replace(end=max(last.end, end)), found[-1].kind)
        else:
            found.append(_Whole(Range(room, start, end), kind))
    return found


def _common(a: Iterable[_Whole], b: Iterable[_Whole]) -> Iterator[Range]:
    """The memory that both have."""
    of_b: defaultdict[Room, list[Range]] = defaultdict(list)
    for other, _kind in sorted(b):
        of_b[other.room].append(other)
    for where, _kind in a:
        others = of_b[where.room]
        first = max(0, bisect_right(others, where.start, key=_START) - 1)
        for other in others[first:]:
            if other.start >= where.end:
                break
            start, end = max(where.start, other.start), min(where.end, other.end)
            if start < end:
                yield Range(where.room, start, end)


def compare_memory(
    a: Path | None, b: Path | None, *, workers: int, progress: Progress
) -> tuple[MemoryChange, ...]:
    """Compare two saved memories, matched by process and address, image files by name.

    Args:
        a: Folder with packs and index; None where nothing was saved.
        b: The other one.
        workers: Threads; each holds one chunk of both.
        progress: Called with bytes compared and bytes in all.

    Returns:
        One for each range of memory that either has, by process and address.

    Raises:
        IntegrityError: An index or a pack is damaged; names it and the chunk.
        IncompatibleError: A newer gpusnap wrote them.
        PrivilegeError: They may not be read.
    """
    first, second = (Saved(folder) if folder is not None else None for folder in (a, b))
    all_a, all_b = _ranges(first), _ranges(second)
    common = tuple(_common(all_a, all_b))
    differing = (
        changed_bytes(first, second, common, workers=workers, progress=progress)
        if first and second
        else {}
    )
    wholes = _Wholes((*all_a, *all_b))
    in_a, in_b = (
        wholes.add_up((each.range, each.range.length) for each in all_of)
        for all_of in (all_a, all_b)
    )
    both = wholes.add_up((each, each.length) for each in common)
    changed = wholes.add_up(differing.items())
    return tuple(
        MemoryChange(
            pid=where.room.pid or None,
            image=where.room.image or None,
            start=where.start,
            length=where.length,
            kind=kind,
            equal=both[number] - changed[number],
            changed=changed[number],
            only_a=in_a[number] - both[number],
            only_b=in_b[number] - both[number],
        )
        for number, (where, kind) in enumerate(wholes.found)
    )
