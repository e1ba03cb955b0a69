"""From packs back into the memory of processes, and into image files."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from gpusnap.datapath.codecs import content
from gpusnap.datapath.images import ImageSink
from gpusnap.datapath.reading import ExtentOf, never, use_chunks
from gpusnap.datapath.records import MISMATCH, Codec, FormatError
from gpusnap.datapath.saved import Located, Saved
from gpusnap.datapath.spans import Image, Span
from gpusnap.errors import TargetError
from gpusnap.hookspecs import Progress
from gpusnap.native import Extent, crc32, nonzero_pages, read_process, write_process

Pids: TypeAlias = Callable[[int], int]
"""Tells by a PID of the snapshot which process here is meant."""


def _same(pid: int) -> int:
    return pid


class Sink(Protocol):
    """Takes the bytes of spans to where they belong; several threads use it at once."""

    def write(self, span: Span, offset: int, data: memoryview) -> None:
        """Write what was saved of a span at an offset, where all is zero so far."""


class ProcessSink:
    """Processes whose memory is empty."""

    def __init__(self, pids: Pids, *, verify: bool) -> None:
        self._pids = pids
        self._verify = verify

    def write(self, span: Span, offset: int, data: memoryview) -> None:
        """Write into the process, and read it back if that is wanted."""
        pid, address = self._pids(span.pid), span.start + offset
        # Where runs were joined zeros lie between them: those pages stay untouched.
        for begin, length in nonzero_pages(data):
            write_process(pid, address + begin, data[begin : begin + length])
        if self._verify:
            _read_back(pid, address, data)


def _read_back(pid: int, address: int, data: memoryview) -> None:
    buffer = memoryview(bytearray(len(data)))
    if read_process(pid, address, buffer) != crc32(data):
        text = f"Memory of process {pid} at {address:#x} is not what was written into it"
        raise TargetError(text, cure="Nothing else may change the process meanwhile")


class Filler:
    """Writes what a :class:`~gpusnap.datapath.Saver` left in a folder."""

    def __init__(
        self, folder: Path, *, workers: int | None = None, saved: Saved | None = None
    ) -> None:
        """Read the index and compare it with the packs' lengths.

        Args:
            folder: With packs and index.
            workers: Threads; None for one a CPU.
            saved: What the index tells, where it was read already.

        Raises:
            IntegrityError: Index or packs are damaged or missing.
            IncompatibleError: A newer gpusnap wrote them.
            PrivilegeError: They may not be read.
        """
        self._workers = workers or len(os.sched_getaffinity(0))
        self._saved = Saved(folder) if saved is None else saved
        self._saved.require_packs()
        self._wanted = self._located(of_image=False)

    def _located(self, *, of_image: bool) -> list[Located]:
        """The chunks of which images, or processes, have some, with these places alone."""
        fitting = [span.of_image is of_image for span in self._saved.spans]
        located = [each for each in self._saved.located() if each.places]
        if all(fitting):  # most often: there may be very many chunks
            return located
        found = (
            (each, tuple(place for place in each.places if fitting[place.span])) for each in located
        )
        return [each._replace(places=places) for each, places in found if places]

    @property
    def spans(self) -> tuple[Span, ...]:
        """The memory of processes that was saved, in the order in which it was given."""
        return tuple(span for span in self._saved.spans if not span.of_image)

    @property
    def images(self) -> tuple[Image, ...]:
        """The image files that were saved."""
        return self._saved.images

    @property
    def raw_bytes(self) -> int:
        """Bytes that will be written into the processes."""
        return sum(map(_worth, self._wanted))

    def fill(self, progress: Progress, *, verify: bool = False, pids: Pids = _same) -> None:
        """Write all that was saved into processes whose memory is empty.

        A chunk is written only after its content was found to be what was saved. After an
        exception the processes hold a part of it only and must not run.

        Args:
            progress: Called with bytes of memory done and in all.
            verify: Read everything back and compare it.
            pids: Which process is meant by a PID of the snapshot.

        Raises:
            IntegrityError: A pack is damaged; names it and the chunk.
            TargetError: A process ended, or cannot be written to.
        """
        extent_of = never if verify else partial(self._extent_of, pids=pids)
        self._use(self._wanted, ProcessSink(pids, verify=verify), extent_of, progress)

    def write_images(self, folder: Path, progress: Progress) -> None:
        """Make the image files again, byte for byte what they were.

        A chunk is written only after its content was found to be what was saved. After an
        exception the files are there in part only.

        Args:
            folder: Has no files of these names.
            progress: Called with bytes done and in all.

        Raises:
            IntegrityError: A pack is damaged; names it and the chunk.
            GpusnapError: The disk refused.
        """
        wanted = self._located(of_image=True)
        self._use(wanted, ImageSink(folder, self.images), never, progress)

    def _extent_of(self, located: Located, *, pids: Pids) -> Extent | None:
        """What C can do: a chunk that is stored as it was and belongs to one place."""
        chunk = located.chunk
        if chunk.codec != Codec.RAW or len(located.places) != 1:
            return None
        (place,) = located.places
        span = self._saved.spans[place.span]
        address = span.start + place.offset
        return Extent(chunk.position, chunk.length, address, pids(span.pid), chunk.crc)

    def _use(
        self, wanted: Sequence[Located], sink: Sink, extent_of: ExtentOf, progress: Progress
    ) -> None:
        use_chunks(
            self._saved,
            wanted,
            partial(self._put, sink=sink),
            worth=_worth,
            extent_of=extent_of,
            workers=self._workers,
            progress=progress,
        )

    def _put(self, located: Located, extent: memoryview, *, sink: Sink) -> None:
        chunk = located.chunk
        # The zeros behind what is compressed are compared here alone: no codec looks at them.
        if chunk.codec != Codec.RAW and crc32(extent) != chunk.stored_crc:
            raise FormatError(MISMATCH)
        data = content(chunk, extent[: chunk.stored])
        for place in located.places:
            sink.write(self._saved.spans[place.span], place.offset, data)


def _worth(located: Located) -> int:
    return located.chunk.length * len(located.places)
