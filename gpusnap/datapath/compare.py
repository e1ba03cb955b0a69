"""What differs between two saved memories, to the page."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path

import msgspec

from gpusnap.datapath.pairs import Range, changed_bytes
from gpusnap.datapath.saved import Saved
from gpusnap.datapath.spans import Kind, Span
from gpusnap.hookspecs import Progress

_START = attrgetter("start")


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """How a range of a process's memory differs between two snapshots, in bytes.

    Where spans of the two overlap without being the same, they are one range. ``equal``,
    ``changed``, ``only_a`` and ``only_b`` add up to ``length``.

    Attributes:
        pid: The process.
        start: Address of the first byte.
        length: Bytes from there to the end.
        kind: What it holds.
        equal: Pages that are the same, also where both are zero.
        changed: Pages that are not.
        only_a: What only the first snapshot has.
        only_b: What only the second has.
    """

    pid: int
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


class _Wholes:
    """Ranges that spans of either side are parts of, and byte counts of each."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = _joined(spans)
        self._keys = [(span.pid, span.start) for span in self.spans]

    def add_up(self, parts: Iterable[tuple[int, int, int]]) -> list[int]:
        """For each range the bytes of its parts, which are PIDs, addresses and lengths."""
        sums = [0] * len(self.spans)
        for pid, start, length in parts:
            sums[bisect_right(self._keys, (pid, start)) - 1] += length
        return sums


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans as they are, those that overlap as one."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.pid, span.start)):
        last = found[-1] if found else None
        if last is not None and last.pid == span.pid and span.start < last.end:
            length = max(last.end, span.end) - last.start
            found[-1] = Span(last.pid, last.start, length, last.kind)
        else:
            found.append(span)
    return found


def _common(a: Iterable[Span], b: Iterable[Span]) -> Iterator[Range]:
    """The memory that both have."""
    of_b: defaultdict[int, list[Span]] = defaultdict(list)
    for span in sorted(b, key=_START):
        of_b[span.pid].append(span)
    for span in a:
        others = of_b[span.pid]
        first = max(0, bisect_right(others, span.start, key=_START) - 1)
        for other in others[first:]:
            if other.start >= span.end:
                break
            start, end = max(span.start, other.start), min(span.end, other.end)
            if start < end:
                yield Range(span.pid, start, end)


def compare_memory(
    a: Path | None, b: Path | None, *, workers: int, progress: Progress
) -> tuple[MemoryChange, ...]:
    """Compare two saved memories, matched by process and address.

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
    spans_a, spans_b = first.spans if first else (), second.spans if second else ()
    common = tuple(_common(spans_a, spans_b))
    differing = (
        changed_bytes(first, second, common, workers=workers, progress=progress)
        if first and second
        else {}
    )
    wholes = _Wholes((*spans_a, *spans_b))
    in_a, in_b = (
        wholes.add_up((span.pid, span.start, span.length) for span in spans)
        for spans in (spans_a, spans_b)
    )
    both = wholes.add_up((pid, start, end - start) for pid, start, end in common)
    changed = wholes.add_up((pid, start, count) for (pid, start, _), count in differing.items())
    return tuple(
        MemoryChange(
            pid=span.pid,
            start=span.start,
            length=span.length,
            kind=span.kind,
            equal=both[number] - changed[number],
            changed=changed[number],
            only_a=in_a[number] - both[number],
            only_b=in_b[number] - both[number],
        )
        for number, span in enumerate(wholes.spans)
    )
