"""Image files that are saved into packs as memory is, and made again from them."""

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from gpusnap.datapath.files import create, open_regular, read_exactly, storage, write_all
from gpusnap.datapath.source import ProcessMemory, Runs, Source, Wanted
from gpusnap.datapath.spans import Image, Kind, Span, whole_pages
from gpusnap.native import Copied, Outlet, Sent, crc32, nonzero_pages


class ImageFile(msgspec.Struct, frozen=True, kw_only=True):
    """An image file to be saved; it must not change meanwhile.

    Attributes:
        path: The file, whose name is that of the image.
        parts: Lengths in bytes of the parts of it, one behind the other, all of the file. No
            chunk reaches over the border between two: so what is in one part is found again
            where another one grew.
    """

    path: Path
    parts: tuple[int, ...]

    @property
    def image(self) -> Image:
        """What the index tells of it."""
        return Image(self.path.name, sum(self.parts))


def image_spans(files: Sequence[ImageFile]) -> Iterator[Span]:
    """The parts of all files that are not empty, file by file."""
    for number, file in enumerate(files):
        start = 0
        for length in file.parts:
            if length:
                yield Span(number, start, length, Kind.IMAGE)
            start += length


class ImageSource:
    """Gives what is in image files."""

    def __init__(self, files: Sequence[ImageFile]) -> None:
        self._files = files

    def populated(self, span: Span, offset: int, length: int) -> list[tuple[int, int]]:
        """All of it: holes in a file are found as pages of zeros."""
        return [(offset, whole_pages(min(length, span.length - offset)))]

    def read(self, wanted: Sequence[Wanted], buffer: memoryview) -> list[Copied]:
        """Read from the files, each open only meanwhile: there may be thousands of them."""
        found, at = list[Copied](), 0
        for span, offset, length in wanted:
            found.append(self._read(span, offset, buffer[at : at + length]))
            at += length
        return found

    def send(self, _span: Span, _runs: Runs, _buffer: memoryview, _outlet: Outlet) -> Sent:
        """None: the copy would have to come from a file."""
        return Sent()

    def _read(self, span: Span, offset: int, buffer: memoryview) -> Copied:
        path = self._files[span.pid].path
        length = min(len(buffer), span.length - offset)
        with storage("read", path):
            descriptor = open_regular(path)
            try:
                read_exactly(descriptor, buffer[:length], span.start + offset)
            finally:
                os.close(descriptor)
        buffer[length:] = bytes(len(buffer) - length)
        return Copied(crc32(buffer), nonzero_pages(buffer))


class MixedSource:
    """Gives the memory of processes, and what is in image files."""

    def __init__(self, files: Sequence[ImageFile]) -> None:
        self._images: Source = ImageSource(files)
        self._memory: Source = ProcessMemory()

    def _of(self, span: Span) -> Source:
        return self._images if span.of_image else self._memory

    def populated(self, span: Span, offset: int, length: int) -> list[tuple[int, int]]:
        """What the one of the two says."""
        return self._of(span).populated(span, offset, length)

    def read(self, wanted: Sequence[Wanted], buffer: memoryview) -> list[Copied]:
        """What the one of the two gives, or both in turn."""
        found, at = list[Copied](), 0
        for source, group in groupby(wanted, key=lambda each: self._of(each.span)):
            parts = list(group)
            length = sum(part.length for part in parts)
            found += source.read(parts, buffer[at : at + length])
            at += length
        return found

    def send(self, span: Span, runs: Runs, buffer: memoryview, outlet: Outlet) -> Sent:
        """What the one of the two does."""
        return self._of(span).send(span, runs, buffer, outlet)


class ImageSink:
    """Makes image files in a folder; several threads write to it at once."""

    def __init__(self, folder: Path, images: Sequence[Image]) -> None:
        """Make the files, in full length and without content.

        Args:
            folder: Has no files of these names.
            images: By their numbers.

        Raises:
            GpusnapError: The disk refused, or a file is there.
        """
        self._paths = [folder / image.name for image in images]
        for path, image in zip(self._paths, images, strict=True):
            with storage("write", path):
                descriptor = create(path)
                try:
                    os.ftruncate(descriptor, image.length)
                finally:
                    os.close(descriptor)

    def write(self, span: Span, offset: int, data: memoryview) -> None:
        """Write what was saved of a span at an offset; zeros stay holes."""
        path = self._paths[span.pid]
        data = data[: span.length - offset]
        with storage("write", path):
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                for begin, length in nonzero_pages(data):
                    part = data[begin : begin + length]
                    write_all(descriptor, [part], span.start + offset + begin)
            finally:
                os.close(descriptor)
