"""SHA-256 and CRC-32 of files, each file read once, packs not at all."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
from msgspec import Meta

from gpusnap import native
from gpusnap.datapath import Pack, pack_name
from gpusnap.hookspecs import Progress
from gpusnap.repository.layout import REGIONS
from gpusnap.repository.storage import open_regular, require_damage
from gpusnap.repository.tree import Entry, processors

STEP = 1 << 20
"""Bytes read at once: they are still in the cache when the second sum is taken."""

Advance = Callable[[int], None]


class FileDigest(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a snapshot: where it is below the snapshot's folder, and its sums.

    Attributes:
        path: Relative, with ``/`` between its parts, none of them ``.`` or ``..``.
        size: Length in bytes.
        crc32: CRC-32 as zlib and Ethernet define it.
        sha256: SHA-256 in lower-case hexadecimal digits; None for a pack, whose chunks have
            their sums in the index.
    """

    path: str
    size: Annotated[int, Meta(ge=0)]
    crc32: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None

    def __post_init__(self) -> None:
        """Refuse a path that could lead out of the snapshot."""
        path = PurePosixPath(self.path)
        outside = path.is_absolute() or ".." in path.parts or "\0" in self.path
        if outside or str(path) != self.path or self.path == ".":
            raise ValueError(f"{self.path!r} is not a path inside a snapshot")


class Meter:
    """Adds up the bytes of several threads, reports them one call at a time, and stops them."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total = total
        self._progress = progress
        self._done = 0
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        """Count bytes; raises what stopped the work, in every thread."""
        with self._lock:
            if self._error is not None:
                raise self._error
            self._done += count
            try:
                self._progress(self._done, self._total)
            except BaseException as error:
                self._error = error
                raise

    def stop(self, error: BaseException) -> None:
        """Have every later :meth:`advance` raise an error."""
        with self._lock:
            self._error = error


def _sum_and_read(view: memoryview, crc: int, file: FileIO, buffer: bytearray) -> tuple[int, int]:
    return native.crc32(view, crc), file.readinto(buffer) or 0


def digest_file(path: Path, name: str, advance: Advance) -> FileDigest:
    """Read a file once and take both sums.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > STEP:
            return _digest_large(file, name, advance)
        data = file.readall()
    advance(len(data))
    sha = hashlib.sha256(data).hexdigest()
    return FileDigest(path=name, size=len(data), crc32=native.crc32(data), sha256=sha)


def _digest_large(file: FileIO, name: str, advance: Advance) -> FileDigest:
    """Have a second thread take the CRC and read the next step while SHA-256 is busy.

    That is the slowest of the three.
    """
    sha, crc, size = hashlib.sha256(), 0, 0
    buffer, other = bytearray(STEP), bytearray(STEP)
    with ThreadPoolExecutor(1) as second:
        length = file.readinto(buffer)
        while length:
            view = memoryview(buffer)[:length]
            ahead = second.submit(_sum_and_read, view, crc, file, other)
            sha.update(view)
            size += length
            crc, length = ahead.result()
            buffer, other = other, buffer
            advance(len(view))
    return FileDigest(path=name, size=size, crc32=crc, sha256=sha.hexdigest())


def _attempt(root: Path, entry: Entry, advance: Advance) -> FileDigest | OSError:
    try:
        return digest_file(root / entry.path, entry.path, advance)
    except OSError as error:
        require_damage(error, root / entry.path)
        return error


def pack_digests(packs: Iterable[Pack]) -> Iterator[FileDigest]:
    """What a manifest says of packs: their sums were taken as they were written."""
    for number, pack in enumerate(packs):
        path = f"{REGIONS}/{pack_name(number)}"
        yield FileDigest(path=path, size=pack.length, crc32=pack.crc(), sha256=None)


def digest_files(
    root: Path, entries: Iterable[Entry], progress: Progress, *, workers: int | None = None
) -> dict[str, FileDigest | OSError]:
    """Take the sums of files in parallel, the largest first.

    Args:
        root: The folder the entries were found in.
        entries: Files of it.
        progress: Called by one thread at a time.
        workers: Threads; None for one a CPU.

    Returns:
        For each path its digest, or why it could not be read.

    Raises:
        GpusnapError: Too many files are open.
    """
    files = sorted(entries, key=lambda entry: entry.size, reverse=True)
    meter = Meter(sum(entry.size for entry in files), progress)
    with ThreadPoolExecutor(workers or processors()) as pool:
        try:
            sums = {each.path: pool.submit(_attempt, root, each, meter.advance) for each in files}
            return {path: future.result() for path, future in sums.items()}
        except BaseException as error:
            # An interrupt must not wait until gigabytes have been read.
            meter.stop(error)
            pool.shutdown(wait=False, cancel_futures=True)
            raise
