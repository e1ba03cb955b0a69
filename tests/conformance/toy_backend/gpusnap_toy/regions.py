"""Finds the memory that a checkpoint added to a process."""

from collections.abc import Iterator

from gpusnap.target import Mapping, read_maps
from gpusnap.types import Region


def added_regions(pid: int, before: tuple[Mapping, ...]) -> tuple[Region, ...]:
    """Private memory that was not mapped before.

    Ranges are compared, not mappings: the kernel merges a new mapping with a like neighbour.
    """
    return tuple(
        Region(pid, start, end - start)
        for mapping in read_maps(pid)
        if mapping.private_anonymous and mapping.permissions == "rw-p"
        for start, end in _added(mapping, before)
    )


def _added(mapping: Mapping, before: tuple[Mapping, ...]) -> Iterator[tuple[int, int]]:
    start = mapping.start
    for old in before:  # by rising address
        if start < old.end and old.start < mapping.end:
            if start < old.start:
                yield start, old.start
            start = old.end
    if start < mapping.end:
        yield start, mapping.end
