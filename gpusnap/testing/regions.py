"""Finds the memory that a driver's checkpoint added to a process, by its memory maps."""

from collections.abc import Iterable, Sequence

from gpusnap.target import Mapping
from gpusnap.types import Region


def new_regions(
    pid: int, before: Sequence[Mapping], after: Sequence[Mapping]
) -> tuple[Region, ...]:
    """Private anonymous writable memory in ``after`` that was no memory at all in ``before``.

    Ranges are compared, not mappings: the kernel merges a new mapping with a neighbour of the
    same kind, so that a checkpoint may only show as an old mapping that grew.

    Returns:
        Regions by rising address.
    """
    taken = [(mapping.start, mapping.end) for mapping in before]
    return tuple(
        Region(pid, start, end - start)
        for mapping in after
        if mapping.private_anonymous and mapping.permissions == "rw-p"
        for start, end in _without(mapping.start, mapping.end, taken)
    )


def _without(start: int, end: int, taken: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of ``[start, end)`` outside the taken ranges, which rise by address."""
    parts = []
    for low, high in taken:
        if high <= start or low >= end:
            continue
        if low > start:
            parts.append((start, low))
        start = max(start, high)
    if start < end:
        parts.append((start, end))
    return parts
