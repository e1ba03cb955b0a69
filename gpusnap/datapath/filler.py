"""From packs back into the memory of processes."""

import os
from functools import partial
from pathlib import Path

from gpusnap.datapath import records
from gpusnap.datapath.checks import index_fault
from gpusnap.datapath.codecs import decode
from gpusnap.datapath.files import read_exactly, read_whole
from gpusnap.datapath.reading import Use, damage, opened, use_chunks
from gpusnap.datapath.records import HEADER, INDEX, Chunk, FormatError, Pack
from gpusnap.datapath.spans import Span
from gpusnap.errors import TargetError
from gpusnap.hookspecs import Progress
from gpusnap.native import crc32, read_process, write_process

_MISMATCH = "it does not match its checksum"


class Filler:
    """Reads what a :class:`~gpusnap.datapath.Saver` left in a folder."""

    def __init__(self, folder: Path, *, workers: int | None = None) -> None:
        """Read the index and compare it with the packs' lengths.

        Args:
            folder: With packs and index.
            workers: Threads; None for one a CPU.

        Raises:
            IntegrityError: Index or packs are damaged or missing.
            IncompatibleError: A newer gpusnap wrote them.
            PrivilegeError: They may not be read.
        """
        self._folder = folder
        self._workers = workers or len(os.sched_getaffinity(0))
        with damage(folder / INDEX):
            self._index = records.decode_index(read_whole(folder / INDEX))
            self._tables = [pack.chunks() for pack in self._index.packs]
            if fault := index_fault(self._index, self._tables):
                raise FormatError(fault)
        for number, pack in enumerate(self._index.packs):
            with opened(self._path(number)) as descriptor:
                size = os.fstat(descriptor).st_size
                if size != pack.length:
                    raise FormatError(f"it has {size} bytes instead of {pack.length}")

    @property
    def spans(self) -> tuple[Span, ...]:
        """The memory that was saved, in the order in which it was given."""
        return self._index.spans

    @property
    def raw_bytes(self) -> int:
        """Bytes that will be written into the processes."""
        return sum(chunk.length for table in self._tables for chunk in table)

    def check(self, progress: Progress) -> None:
        """Read every byte of every pack and compare it with what it should be.

        Args:
            progress: Called with bytes of memory done and in all.

        Raises:
            IntegrityError: Names the pack and the chunk.
        """
        for number, pack in enumerate(self._index.packs):
            with opened(self._path(number)) as descriptor:
                self._check_frame(descriptor, pack)
        self._use_chunks(progress, _check_stored)

    def fill(self, progress: Progress, *, verify: bool = False) -> None:
        """Write all that was saved into processes whose memory is empty.

        A chunk is written only after its content was found to be what was saved. After an
        exception the processes hold a part of it only and must not run.

        Args:
            progress: Called with bytes of memory done and in all.
            verify: Read everything back and compare it.

        Raises:
            IntegrityError: A pack is damaged; names it and the chunk.
            TargetError: A process ended, or cannot be written to.
        """
        self._use_chunks(progress, partial(self._put, verify=verify))

    def _path(self, pack: int) -> Path:
        return self._folder / records.pack_name(pack)

    def _use_chunks(self, progress: Progress, use: Use) -> None:
        use_chunks(self._folder, self._tables, self._workers, progress, use)

    def _check_frame(self, descriptor: int, pack: Pack) -> None:
        """Header and footer, which are known to the last byte."""
        length = records.footer_length(len(self.spans), len(pack.records))
        position = pack.length - length
        header, footer = bytearray(HEADER), bytearray(length)
        read_exactly(descriptor, memoryview(header), 0)
        read_exactly(descriptor, memoryview(footer), position)
        if header != records.encode_header(pack.id):
            raise FormatError("its header is not that of the pack in the index")
        if footer != records.encode_footer(pack.id, position, self.spans, pack.records):
            raise FormatError("its footer is not that of the pack in the index")

    def _put(self, chunk: Chunk, extent: memoryview, *, verify: bool) -> None:
        data = decode(chunk.codec, extent[: chunk.stored], chunk.length)
        if crc32(data) != chunk.crc:
            raise FormatError(_MISMATCH)
        span = self.spans[chunk.span]
        address = span.start + chunk.offset
        write_process(span.pid, address, data)
        if verify:
            _read_back(span.pid, address, chunk)


def _check_stored(chunk: Chunk, extent: memoryview) -> None:
    if crc32(extent) != chunk.stored_crc:
        raise FormatError(_MISMATCH)


def _read_back(pid: int, address: int, chunk: Chunk) -> None:
    buffer = memoryview(bytearray(chunk.length))
    if read_process(pid, address, buffer) != chunk.crc:
        text = f"Memory of process {pid} at {address:#x} is not what was written into it"
        raise TargetError(text, cure="Nothing else may change the process meanwhile")
