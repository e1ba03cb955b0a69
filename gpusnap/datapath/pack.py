"""Where bytes go: packs, each written by one thread."""

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gpusnap.datapath import records
from gpusnap.datapath.codecs import Encoded
from gpusnap.datapath.direct import Staging, set_direct
from gpusnap.datapath.files import create, storage, write_all
from gpusnap.datapath.identities import Home
from gpusnap.datapath.records import (
    CHUNK,
    HEADER,
    NO_IDENTITY,
    Chunk,
    Codec,
    Origin,
    Pack,
    Place,
    seal_of,
)
from gpusnap.datapath.source import Data, Written
from gpusnap.datapath.spans import PAGE, Span
from gpusnap.native import Outlet, crc32

_BATCH = 4 << 20
"""Bytes that are handed to the kernel at once."""

_MOST_PARTS = 512
"""Below the kernel's limit of 1,024 parts in one write."""

_STAGED = HEADER + _BATCH + CHUNK
"""Most bytes of one write: the chunk with which it becomes due may be one of the longest."""


class Use:
    """What a codec made of memory: chunks, bytes of memory, bytes in packs."""

    def __init__(self) -> None:
        self.chunks = self.raw = self.stored = 0

    def add(self, chunks: int, raw: int, stored: int) -> None:
        """Count more of it."""
        self.chunks += chunks
        self.raw += raw
        self.stored += stored


class Ways(NamedTuple):
    """How a pack gets to the disk.

    Attributes:
        direct: Asked before each write whether it is to go past the page cache.
        at_once: Asked after each write whether the disk is to work on it now, rather than when
            much waits for it, or all of it is to be durable.
        make: Makes the file and opens it; there may be room in it already.
    """

    direct: Callable[[], bool] = lambda: False
    at_once: Callable[[], bool] = lambda: False
    make: Callable[[Path], int] = create


_PLAIN = Ways()


class PackWriter:
    """Writes one pack, which gets its number and its file with its first chunk.

    Attributes:
        number: Of the pack, -1 before.
        uses: What each codec made of the memory.
    """

    def __init__(self, folder: Path, numbers: Iterator[int], ways: Ways = _PLAIN) -> None:
        """Write into a folder.

        Args:
            folder: For packs.
            numbers: Gives every writer of the folder another number, without gaps.
            ways: How the file is made and written.
        """
        self.number = -1
        self.uses: defaultdict[int, Use] = defaultdict(Use)
        self._numbers = numbers
        self._direct, self._at_once, self._make = ways
        self._staging: Staging | None = None
        self._path = folder
        self._id = records.new_pack_id()
        self._descriptor: int | None = None
        self._records = bytearray()
        self._origins: list[Origin] = []
        self._position = 0
        self._parts: list[memoryview | bytes] = []
        self._waiting = 0

    def append(self, data: Data, encoded: Encoded, identity: bytes = NO_IDENTITY) -> Home:
        """Add a chunk; what it refers to must stay as it is until :meth:`flush`.

        Args:
            data: The memory that it holds.
            encoded: What is stored of it.
            identity: BLAKE3 of the memory.

        Returns:
            Where it is.
        """
        padding = bytes(-len(encoded.data) % PAGE)
        # zlib computes so few bytes without a release of the interpreter's lock.
        crc = zlib.crc32(padding, crc32(encoded.data)) if encoded.codec else data.crc
        chunk = Chunk(0, data.length, len(encoded.data), encoded.codec, data.crc, crc, identity)
        return self.add(chunk, (encoded.data, padding), Origin(data.offset, data.span))

    def add(self, chunk: Chunk, parts: Sequence[memoryview | bytes], origin: Origin) -> Home:
        """Add a chunk whose extent is made already; its position is where it comes to lie."""
        if self._descriptor is None:
            self._begin()
        home = Home(self.number, len(self._origins))
        self._records += chunk._replace(position=self._position + self._waiting).encode()
        self._origins.append(origin)
        self.uses[chunk.codec].add(1, chunk.length, chunk.extent)
        for part in parts:
            if part:
                self._add(part)
        if self._waiting >= _BATCH or len(self._parts) >= _MOST_PARTS:
            self.flush()
        return home

    @property
    def may_send(self) -> bool:
        """Whether chunks may be written past this class: where writes use the page cache."""
        return self._staging is None and not self._direct()

    def outlet(self) -> Outlet | None:
        """Where chunks may be written past this class, to be told of by :meth:`note`.

        None before the first chunk, with which the pack gets its number.

        Raises:
            GpusnapError: The disk refused.
        """
        if self._descriptor is None:
            return None
        self.flush()
        return Outlet(self._descriptor, self._position)

    def note(self, written: Written) -> None:
        """Take in chunks that were written to the last outlet."""
        if written.position != self._position or self._parts:
            raise RuntimeError("chunks were written elsewhere")
        self._begin_writeback(written.length)
        self._records += records.encode_raw(self._position, written.stored)
        self._origins += [Origin(each.offset, written.span) for each in written.stored]
        self._position += written.length
        self.uses[Codec.RAW].add(len(written.stored), written.length, written.length)

    def places(self) -> list[Place]:
        """Where the memory is that each chunk was made of."""
        origins = enumerate(self._origins)
        return [Place(offset, span, self.number, chunk) for chunk, (offset, span) in origins]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn the kernel's refusals inside the block into sentences about the pack."""
        with storage("write", self._path):
            yield

    def _begin(self) -> None:
        self.number = next(self._numbers)
        self._path /= records.pack_name(self.number)
        with storage("write", self._path):
            self._descriptor = self._make(self._path)
        self._add(records.encode_header(self._id))

    def _add(self, part: memoryview | bytes) -> None:
        self._parts.append(part)
        self._waiting += len(part)

    def flush(self) -> None:
        """Write what was added."""
        if self._descriptor is None or not self._parts:
            return
        with storage("write", self._path):
            if self._staging is None and self._direct():
                set_direct(self._descriptor, on=True)
                self._staging = Staging(_STAGED)
            parts = self._staging.align(self._parts) if self._staging else self._parts
            write_all(self._descriptor, parts, self._position)
        self._begin_writeback(self._waiting)
        self._position += self._waiting
        self._parts.clear()
        self._waiting = 0

    def _begin_writeback(self, length: int) -> None:
        """Have the disk work on what was just written into the page cache."""
        if self._descriptor is None or self._staging is not None or not self._at_once():
            return
        # Pages that are not on the disk yet stay in the cache; a file system that cannot does not
        with suppress(OSError):
            os.posix_fadvise(self._descriptor, self._position, length, os.POSIX_FADV_DONTNEED)

    def _end_direct(self, descriptor: int) -> None:
        """Go through the page cache from now on: a footer is not made of whole pages."""
        self._direct = _PLAIN.direct
        if self._staging is not None:
            self._staging = None
            with storage("write", self._path):
                set_direct(descriptor, on=False)

    def seal(self, spans: Sequence[Span]) -> Pack | None:
        """Write the footer and make all of it durable; None where no chunk was added."""
        pack = self.end(spans)
        self.make_durable()
        return pack

    def end(self, spans: Sequence[Span]) -> Pack | None:
        """Write the footer; None where no chunk was added."""
        if self._descriptor is None:
            return None
        self.flush()
        self._end_direct(self._descriptor)
        table = bytes(self._records)
        footer = records.encode_footer(self._id, self._position, spans, table, self._origins)
        self._add(footer)
        self.flush()
        return Pack(self._id, self._position, seal_of(footer), table)

    def make_durable(self) -> None:
        """Cut off what room was too much, have the disk write all of it, and close the file."""
        if self._descriptor is not None:
            with storage("write", self._path):
                os.ftruncate(self._descriptor, self._position)
                os.fsync(self._descriptor)
            self.close()

    def close(self) -> None:
        """Close the file, which is closed then even where the disk refuses."""
        self._parts.clear()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with storage("write", self._path):
                os.close(descriptor)
