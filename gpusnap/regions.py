"""Which memory gpusnap saves itself, past CRIU: device memory and large host memory."""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple

import msgspec

from gpusnap.datapath import CHUNK, Kind, Span
from gpusnap.errors import GpusnapError, NotFoundError
from gpusnap.native import MemoryFault, shared_runs
from gpusnap.target import Mapping, parts_outside, read_maps
from gpusnap.types import DeviceImage, Target

MINIMUM_HOST = 1 << 20
"""Bytes from which a mapping of host memory is worth the way past CRIU."""

STEADY_HOST = 16 << 20
"""Bytes from which programs seldom give a mapping back."""

_DEVICE_FIRST = 1
_NAMED_FIRST = 2
_PIECE = 1 << 30
"""Bytes of memory that a thread asks the kernel about at once."""


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


def host_spans(
    target: Target, taken: Sequence[Span], minimum: int = MINIMUM_HOST
) -> tuple[Span, ...]:
    """Large private anonymous memory of a program, as far as it is not taken already.

    In a tree of several processes without the pages that are shared: what a forked child and its
    parent still have in common is copied on write, and CRIU restores that; filled one by one it
    would take twice the room.

    Args:
        target: The tree.
        taken: What is saved anyway.
        minimum: Bytes of the smallest piece.
    """
    large = [span for pid in target.pids for span in _large(pid, minimum)]
    shared = _shared(large) if len(target.processes) > 1 else [[] for _ in large]
    return tuple(
        Span(pid=span.pid, start=start, length=end - start, kind=Kind.HOST)
        for span, ranges in zip(large, shared, strict=True)
        for start, end in parts_outside(
            span.start, span.end, sorted([*ranges, *_ranges(taken, span.pid)])
        )
        if end - start >= minimum
    )


def _large(pid: int, minimum: int) -> Iterator[Span]:
    for mapping in _maps(pid):
        named = mapping.path and not mapping.heap
        # CRIU writes into what may be run, so that is left to it
        suits = _is_private(mapping) and not named and not mapping.executable
        if suits and mapping.length >= minimum:
            yield Span(pid=pid, start=mapping.start, length=mapping.length, kind=Kind.HOST)


def _is_private(mapping: Mapping) -> bool:
    return mapping.private_anonymous or mapping.heap


def _maps(pid: int) -> tuple[Mapping, ...]:
    try:
        return read_maps(pid)
    except NotFoundError:
        return ()


def _ranges(spans: Sequence[Span], pid: int) -> Iterator[tuple[int, int]]:
    return ((span.start, span.end) for span in spans if span.pid == pid)


def _shared(spans: Sequence[Span]) -> list[list[tuple[int, int]]]:
    """For each span the ranges that another process uses too.

    The kernel looks at every page, so several threads ask it: the target may be waiting.
    """
    pieces = [(number, piece) for number, span in enumerate(spans) for piece in _pieces(span)]
    found: list[list[tuple[int, int]]] = [[] for _ in spans]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        answers = pool.map(_shared_ranges, (piece for _, piece in pieces))
        for (number, _), ranges in zip(pieces, answers, strict=True):
            found[number] += ranges
    return found


def _pieces(span: Span) -> Iterator[Span]:
    for start in range(span.start, span.end, _PIECE):
        length = min(_PIECE, span.end - start)
        yield Span(pid=span.pid, start=start, length=length, kind=span.kind)


def _shared_ranges(span: Span) -> list[tuple[int, int]]:
    try:
        found = shared_runs(span.pid, span.start, span.length)
        return [(start, start + length) for start, length in found]
    except MemoryFault:  # it ended meanwhile: CRIU will find out what that means
        return [(span.start, span.end)]


class Settled(NamedTuple):
    """Memory of processes that stand still.

    Attributes:
        spans: What of the chosen memory there is.
        runnable: What of that may be run. While CRIU saves the processes it puts instructions of
            its own into such memory for an instant.
    """

    spans: tuple[Span, ...]
    runnable: tuple[Span, ...]

    def holds_devices(self, length: int) -> bool:
        """Whether what the devices left is all there, and stays as it is while CRIU works.

        Args:
            length: Bytes that they left.
        """
        device = {part for part in self.spans if part.kind is Kind.DEVICE}
        whole = sum(part.length for part in device) == length
        return whole and device.isdisjoint(self.runnable)


def settle(spans: Sequence[Span], target: Target) -> Settled:
    """What of the chosen memory there is now that the processes stand still.

    Args:
        spans: What was chosen.
        target: The tree as it is now.

    Raises:
        RegionsMovedError: Some of it is no longer private anonymous memory: what the program
            mapped there meanwhile was hidden from CRIU, and gpusnap does not save such memory.
            Or a process forked meanwhile has some of the program's memory in common with it.
    """
    maps = {pid: _maps(pid) for pid in {span.pid for span in spans}}
    found = [part for span in spans for part in _present(span, maps[span.pid])]
    present = tuple(span for span, _ in found)
    if len(target.processes) > 1:
        _refuse_shared([span for span in present if span.kind is Kind.HOST])
    return Settled(present, tuple(span for span, mapping in found if mapping.executable))


def _refuse_shared(spans: Sequence[Span]) -> None:
    for span, ranges in zip(spans, _shared(spans), strict=True):
        if ranges:
            msg = f"Process {span.pid} forked and shares memory at {ranges[0][0]:#x}"
            raise RegionsMovedError(msg, cure="Try again")


def _present(span: Span, maps: Sequence[Mapping]) -> Iterator[tuple[Span, Mapping]]:
    # By address: a program may have thousands of mappings, and it stands still meanwhile
    first = bisect_right(maps, span.start, key=lambda mapping: mapping.end)
    for mapping in maps[first:]:
        if mapping.start >= span.end:
            return
        start = max(span.start, mapping.start)
        end = min(span.end, mapping.end)
        if not _is_private(mapping):
            msg = f"Process {span.pid} mapped {mapping.path or 'shared memory'} at {start:#x}"
            raise RegionsMovedError(msg, cure="Try again")
        part = msgspec.structs.replace(span, start=start, length=end - start)
        yield part, mapping


def put_first(spans: Sequence[Span], pid: int, ranges: Sequence[tuple[int, int]]) -> list[Span]:
    """Have some memory copied before all other.

    It only changes the order. A range is widened to whole chunks of its span, so that chunks are
    cut where they would be without it, and an incremental snapshot finds those of its parent.

    Args:
        spans: What will be copied.
        pid: The process whose memory is meant.
        ranges: Addresses and lengths in bytes; what is in none of the spans is passed over.
    """
    parts = (_split(span, ranges) if span.pid == pid else (span,) for span in spans)
    return [*chain.from_iterable(parts)]


def _split(span: Span, ranges: Sequence[tuple[int, int]]) -> Iterator[Span]:
    """The parts of a span, those in the ranges with the highest priority."""
    outside = parts_outside(span.start, span.end, sorted(_widened(span, ranges)))
    inside = parts_outside(span.start, span.end, outside)
    priorities = dict.fromkeys(outside, span.priority) | dict.fromkeys(inside, _NAMED_FIRST)
    changed = msgspec.structs.replace
    for (start, end), priority in sorted(priorities.items()):
        yield changed(span, start=start, length=end - start, priority=priority)


def _widened(span: Span, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges that reach into a span, from the beginning of a chunk to the end of one."""
    for start, length in ranges:
        begin, end = start - span.start, start - span.start + length
        if begin < min(end, span.length) and end > 0:
            yield span.start + begin // CHUNK * CHUNK, span.start - (-end // CHUNK) * CHUNK
