"""Which memory gpusnap saves itself, past CRIU: device memory and large host memory."""

from collections.abc import Iterator, Sequence

from gpusnap.datapath import Kind, Span
from gpusnap.errors import GpusnapError, NotFoundError
from gpusnap.target import Mapping, read_maps
from gpusnap.types import DeviceImage, Target

MINIMUM_HOST = 16 << 20
"""Bytes from which a mapping of host memory is worth the way past CRIU."""

_DEVICE_FIRST = 1


class RegionsMovedError(GpusnapError):
    """Memory was put to another use between its choice and the dump; the dump has to be redone."""


def device_spans(image: DeviceImage | None) -> tuple[Span, ...]:
    """The memory that a device checkpoint left: no thread of the program touches it."""
    regions = image.regions if image is not None else ()
    return tuple(
        Span(
            pid=region.pid,
            start=region.start,
            length=region.length,
            kind=Kind.DEVICE,
            priority=_DEVICE_FIRST,
        )
        for region in regions
    )


def host_spans(target: Target, taken: Sequence[Span]) -> tuple[Span, ...]:
    """Large private anonymous memory of a program, as far as it is not taken already.

    Only of a tree of one process: pages that a forked child shares with its parent are copied
    on write, and CRIU restores that sharing; filled one by one they would take twice the room.
    """
    if len(target.processes) != 1:
        return ()
    pid = target.root.pid
    mappings = [each for each in read_maps(pid) if each.private_anonymous and not each.path]
    return tuple(
        Span(pid=pid, start=start, length=end - start, kind=Kind.HOST)
        for mapping in mappings
        for start, end in _outside(mapping, taken)
        if end - start >= MINIMUM_HOST
    )


def _outside(mapping: Mapping, taken: Sequence[Span]) -> Iterator[tuple[int, int]]:
    start = mapping.start
    for span in sorted(taken, key=lambda span: span.start):
        end = span.start + span.length
        if end <= start or span.start >= mapping.end:
            continue
        if span.start > start:
            yield start, span.start
        start = end
    if start < mapping.end:
        yield start, mapping.end


def settle(spans: Sequence[Span]) -> tuple[Span, ...]:
    """What of the chosen memory there is now that the processes stand still.

    Raises:
        RegionsMovedError: Some of it is no longer private anonymous memory: what the program
            mapped there meanwhile was hidden from CRIU, and gpusnap does not save such memory.
    """
    maps: dict[int, tuple[Mapping, ...]] = {}
    for pid in {span.pid for span in spans}:
        try:
            maps[pid] = read_maps(pid)
        except NotFoundError:
            maps[pid] = ()
    return tuple(part for span in spans for part in _present(span, maps[span.pid]))


def _present(span: Span, maps: Sequence[Mapping]) -> Iterator[Span]:
    for mapping in maps:
        start = max(span.start, mapping.start)
        end = min(span.start + span.length, mapping.end)
        if start >= end:
            continue
        if not mapping.private_anonymous:
            msg = f"Process {span.pid} mapped {mapping.path or 'shared memory'} at {start:#x}"
            raise RegionsMovedError(msg, cure="Try again")
        yield Span(
            pid=span.pid,
            start=start,
            length=end - start,
            kind=span.kind,
            priority=span.priority,
        )
