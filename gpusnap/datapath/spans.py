"""What is saved: ranges of the memory of processes."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

PAGE = 4096
"""Unit of addresses and lengths, whatever the kernel's own pages measure."""

_ADDRESSES = 1 << 64


class Kind(StrEnum):
    """What a span holds."""

    DEVICE = "device"
    """What the driver took off a device; no thread of the program touches it."""
    HOST = "host"
    """Memory of the program."""


class Span(msgspec.Struct, frozen=True):
    """A range of private anonymous memory of one process.

    Attributes:
        pid: The process.
        start: Address of the first byte, a multiple of :data:`PAGE`.
        length: Bytes, a multiple of :data:`PAGE`.
        kind: What it holds.
        priority: Spans of a higher one are copied first.
    """

    pid: int
    start: int
    length: int
    kind: Kind
    priority: int = 0

    @property
    def end(self) -> int:
        """Address of the first byte behind it."""
        return self.start + self.length


def span_fault(spans: Iterable[Span]) -> str | None:
    """What is wrong with spans, as half a sentence; None where nothing is."""
    last: Span | None = None
    for span in sorted(spans, key=lambda each: (each.pid, each.start)):
        if span.start % PAGE or span.length % PAGE or span.length <= 0 or span.start < 0:
            return f"the range at {span.start:#x} of process {span.pid} is not made of whole pages"
        if span.end > _ADDRESSES or not 0 < span.pid < 1 << 31 or abs(span.priority) >= 1 << 63:
            return f"the range at {span.start:#x} of process {span.pid} cannot exist"
        if last is not None and last.pid == span.pid and last.end > span.start:
            return f"two ranges of process {span.pid} overlap at {span.start:#x}"
        last = span
    return None
