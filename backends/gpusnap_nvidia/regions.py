"""Finds where a checkpoint put device memory: in mappings that were not there before.

Measured with driver 580: the state lands in new private anonymous ``rw-p`` mappings of the
process, which no thread of the program touches. The kernel may merge such a mapping with a
neighbour, so ranges are compared, not lines of the map.
"""

from collections.abc import Iterable, Iterator

from gpusnap.target import Mapping, read_maps
from gpusnap.types import Region


def private_ranges(pid: int) -> list[tuple[int, int]]:
    """Private anonymous writable ranges of a process, by rising address."""
    return [(each.start, each.end) for each in read_maps(pid) if _writable(each)]


def _writable(mapping: Mapping) -> bool:
    return mapping.private_anonymous and mapping.permissions == "rw-p"


def new_regions(
    pid: int, before: Iterable[tuple[int, int]], after: Iterable[tuple[int, int]]
) -> tuple[Region, ...]:
    """Ranges of ``after`` that ``before`` does not cover; both rise and do not overlap."""
    old = list(before)
    pieces = (piece for span in after for piece in _uncovered(span, old))
    return tuple(Region(pid, start, end - start) for start, end in pieces)


def _uncovered(span: tuple[int, int], old: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    start, end = span
    for old_start, old_end in old:
        if old_end <= start or old_start >= end:
            continue
        if old_start > start:
            yield start, old_start
        start = old_end
    if start < end:
        yield start, end
