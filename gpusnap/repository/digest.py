"""Sums of files, each file read once, packs not at all.

A file has its CRC-32 and its SHA-256, a large one instead of that a BLAKE3 taken in parts, which
all processors work on at once.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
from msgspec import Meta

from gpusnap import native
from gpusnap.datapath import Pack, pack_name
from gpusnap.hookspecs import Progress
from gpusnap.repository.layout import REGIONS
from gpusnap.repository.parts import PART, STEP, Advance, PartedFile, new_buffer
from gpusnap.repository.storage import open_regular, require_damage
from gpusnap.repository.tree import Entry, processors

TOLD_EVERY = 8 << 20
"""Bytes from one report of progress to the next: at one for each step, threads wait in line."""

_Hexadecimal = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]

_Finish = Callable[[], "FileDigest"]
"""Takes the sums of a file, or waits for those that threads are taking."""


class FileDigest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a snapshot: where it is below the snapshot's folder, and its sums.

    Attributes:
        path: Relative, with ``/`` between its parts, none of them ``.`` or ``..``.
        size: Length in bytes.
        crc32: CRC-32 as zlib and Ethernet define it.
        sha256: SHA-256 in lower-case hexadecimal digits; None for a large file, and for a pack,
            whose chunks have their sums in the index.
        blake3_parts: For a large file, BLAKE3 in such digits: of the BLAKE3 of each of its parts,
            32 bytes each. Every part but the last has :data:`PART` bytes.
    """

    path: str
    size: Annotated[int, Meta(ge=0)]
    crc32: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    sha256: _Hexadecimal | None
    blake3_parts: _Hexadecimal | None = None

    def __post_init__(self) -> None:
        """Refuse a path that could lead out of the snapshot, and two sums for one."""
        path = PurePosixPath(self.path)
        outside = path.is_absolute() or ".." in path.parts or "\0" in self.path
        if outside or str(path) != self.path or self.path == ".":
            raise ValueError(f"{self.path!r} is not a path inside a snapshot")
        if self.sha256 is not None and self.blake3_parts is not None:
            raise ValueError(f"{self.path!r} has a SHA-256 and a BLAKE3")

    @property
    def in_parts(self) -> bool:
        """True for a file that is summed in parts."""
        return self.blake3_parts is not None

    @property
    def is_pack(self) -> bool:
        """True for a file whose sums are in the index."""
        return self.sha256 is None and not self.in_parts

    def same_bytes(self, other: "FileDigest") -> bool:
        """Whether the file of that path in another snapshot is the same, as far as both tell."""
        if self.in_parts != other.in_parts:
            return (self.size, self.crc32) == (other.size, other.crc32)
        return self == other


class Meter:
    """Adds up the bytes of several threads, reports them now and then, and stops the threads."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total = total
        self._progress = progress
        self._done = 0
        self._told = 0
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        """Count bytes; raises what stopped the work, in every thread."""
        with self._lock:
            if self._error is not None:
                raise self._error
            self._done += count
            if self._done < self._total and self._done - self._told < TOLD_EVERY:
                return
            self._told = self._done
            try:
                self._progress(self._done, self._total)
            except BaseException as error:
                self._error = error
                raise

    def stop(self, error: BaseException) -> None:
        """Have every later :meth:`advance` raise an error."""
        with self._lock:
            self._error = error


def _sum_and_read(view: memoryview, crc: int, file: FileIO, buffer: memoryview) -> tuple[int, int]:
    return native.crc32(view, crc), file.readinto(buffer) or 0


def digest_file(path: Path, name: str, advance: Advance, *, in_parts: bool = False) -> FileDigest:
    """Read a file once and take both sums, by this thread, and another one at most.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    if in_parts:
        parted = PartedFile(path)
        parted.read(advance)
        return _parted_digest(name, parted)
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
    buffer, other = new_buffer(), new_buffer()
    with ThreadPoolExecutor(1) as second:
        length = file.readinto(buffer)
        while length:
            view = buffer[:length]
            ahead = second.submit(_sum_and_read, view, crc, file, other)
            sha.update(view)
            size += length
            crc, length = ahead.result()
            buffer, other = other, buffer
            advance(len(view))
    return FileDigest(path=name, size=size, crc32=crc, sha256=sha.hexdigest())


def _parted_digest(name: str, parted: PartedFile) -> FileDigest:
    sums = parted.sums()
    return FileDigest(
        path=name,
        size=sums.size,
        crc32=sums.crc32,
        sha256=None,
        blake3_parts=sums.blake3.hex(),
    )


def _begin_parts(
    pool: ThreadPoolExecutor, path: Path, entry: Entry, advance: Advance, threads: int
) -> _Finish:
    """Let as many threads read a file as have a part of it to read."""
    parted = PartedFile(path)
    count = min(threads, entry.size // PART + 1)
    tasks = [pool.submit(parted.read, advance) for _ in range(count)]

    def finish() -> FileDigest:
        for task in tasks:
            task.result()
        return _parted_digest(entry.path, parted)

    return finish


def _outcome(finish: _Finish, path: Path) -> FileDigest | OSError:
    try:
        return finish()
    except OSError as error:
        require_damage(error, path)
        return error


def _is_large(entry: Entry) -> bool:
    return entry.size > PART


def pack_digests(packs: Iterable[Pack]) -> Iterator[FileDigest]:
    """What a manifest says of packs: their sums were taken as they were written."""
    for number, pack in enumerate(packs):
        path = f"{REGIONS}/{pack_name(number)}"
        yield FileDigest(path=path, size=pack.length, crc32=pack.crc(), sha256=None)


def digest_files(
    root: Path,
    entries: Iterable[Entry],
    progress: Progress,
    *,
    workers: int | None = None,
    in_parts: Callable[[Entry], bool] = _is_large,
) -> dict[str, FileDigest | OSError]:
    """Take the sums of files in parallel, the largest first, and large ones in parts.

    Args:
        root: The folder the entries were found in.
        entries: Files of it.
        progress: Called by one thread at a time.
        workers: Threads; None for one a CPU.
        in_parts: Whether a file is summed in parts; those longer than :data:`PART` are, unless
            they were summed otherwise once.

    Returns:
        For each path its digest, or why it could not be read.

    Raises:
        GpusnapError: Too many files are open.
    """
    files = sorted(entries, key=lambda entry: entry.size, reverse=True)
    total = sum(entry.size for entry in files)
    meter = Meter(total, progress)
    # A thread that has little to do takes longer to start than to do it
    threads = min(workers or processors(), 1 + total // PART)
    large = [entry for entry in files if in_parts(entry)]
    single = [entry for entry in files if not in_parts(entry)]
    # Most are small, and to hand over one takes longer than to read it
    shares = [single[number::threads] for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        try:
            parted = {
                each.path: _begin_parts(pool, root / each.path, each, meter.advance, threads)
                for each in large
            }
            tasks = [pool.submit(_digest_all, root, share, meter.advance) for share in shares]
            sums = {path: _outcome(finish, root / path) for path, finish in parted.items()}
            for task in tasks:
                sums |= task.result()
        except BaseException as error:
            # An interrupt must not wait until gigabytes have been read.
            meter.stop(error)
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {entry.path: sums[entry.path] for entry in files}


def _digest_all(
    root: Path, entries: Iterable[Entry], advance: Advance
) -> dict[str, FileDigest | OSError]:
    def digest(path: str) -> _Finish:
        return partial(digest_file, root / path, path, advance)

    return {each.path: _outcome(digest(each.path), root / each.path) for each in entries}
