"""What is saved: ranges of the memory of processes, and of image files that hold memory."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

PAGE = 4096
"""Unit of addresses and lengths, whatever the kernel's own pages measure."""

MOST_SPANS = 1 << 20
"""More ranges than any target has: a footer that tells of more is not worth the memory."""

_LONGEST = (1 << 63) - 1
"""Bytes of the longest file that Linux knows positions in."""

_ADDRESSES = 1 << 64


class Kind(StrEnum):
    """What a span holds."""

    DEVICE = "device"
    """What the driver took off a device; no thread of the program touches it."""
    HOST = "host"
    """Memory of the program."""
    IMAGE = "image"
    """A part of an image file that a vendor's plugin for CRIU wrote."""


class Image(msgspec.Struct, frozen=True):
    """An image file that was saved as memory is: its name and its length in bytes."""

    name: str
    length: int


class Span(msgspec.Struct, frozen=True):
    """A range of private anonymous memory of one process, or a part of one image file.

    A part of a file may begin and end at any byte. It is saved as if zeros stood behind it up to
    a whole page.

    Attributes:
        pid: The process; of a file its number among the images.
        start: Address of the first byte, a multiple of :data:`PAGE`; in a file its position.
        length: Bytes, in a process a multiple of :data:`PAGE`.
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

    @property
    def of_image(self) -> bool:
        """Whether it is a part of an image file."""
        return self.kind is Kind.IMAGE


def whole_pages(length: int) -> int:
    """The length rounded up to whole pages."""
    return (length + PAGE - 1) // PAGE * PAGE


def span_fault(spans: Sequence[Span], images: Sequence[Image] = ()) -> str | None:
    """What is wrong with spans, as half a sentence; None where nothing is.

    Args:
        spans: Of processes and images.
        images: By their numbers. Their spans must be all of them, without a gap.
    """
    if len(spans) > MOST_SPANS:
        return f"there are more than {MOST_SPANS} ranges"
    fault = _memory_fault(span for span in spans if not span.of_image)
    return fault or _images_fault([span for span in spans if span.of_image], images)


def _memory_fault(spans: Iterable[Span]) -> str | None:
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


def _images_fault(spans: Iterable[Span], images: Sequence[Image]) -> str | None:
    if len({image.name for image in images}) < len(images):
        return "two images have one name"
    for image in images:
        if not _plain(image.name):
            return f"an image cannot be called {image.name!r}"
        if image.length > _LONGEST:
            return f"the image {image.name} cannot have {image.length} bytes"
    reached = [0] * len(images)
    for span in spans:
        if not 0 <= span.pid < len(images) or span.start != reached[span.pid] or span.length <= 0:
            return f"the part at {span.start} of image {span.pid} is not the next one"
        reached[span.pid] = span.end
    if reached != [image.length for image in images]:
        return "the parts of an image are not all of it"
    return None


def _plain(name: str) -> bool:
    """Whether a file can have the name in whatever folder it is put, and is then shown."""
    return name.isprintable() and "/" not in name and name[:1] not in {"", "."}
