"""Files of saved memory: made, opened and read with care; the kernel's refusals as sentences."""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpusnap.datapath.records import FormatError, NewerError
from gpusnap.errors import GpusnapError, IncompatibleError, IntegrityError, PrivilegeError

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_SPACE = "Free space on that file system, or choose another repository"
_OWNER = "Run as the owner of the repository, or as root"
_OTHER = "Restore another snapshot"


class _Cause(msgspec.Struct, frozen=True):
    reason: str
    cure: str | None = None
    error: type[GpusnapError] = GpusnapError


_CAUSES = {
    errno.ENOSPC: _Cause("the disk is full", _SPACE),
    errno.EDQUOT: _Cause("the disk quota is used up", _SPACE),
    errno.EFBIG: _Cause("the limit for the size of a file is reached", "Raise it: ulimit -f"),
    errno.EROFS: _Cause("the file system is read-only", "Choose another repository"),
    errno.EACCES: _Cause("permission denied", _OWNER, PrivilegeError),
    errno.EPERM: _Cause("the operation is not permitted", _OWNER, PrivilegeError),
    errno.EIO: _Cause("the disk failed", "Look into the kernel's log"),
}


@contextmanager
def storage(doing: str, path: Path) -> Iterator[None]:
    """Turn the kernel's refusals inside the block into sentences about ``path``."""
    try:
        yield
    except OSError as error:
        cause = _CAUSES.get(error.errno or 0, _Cause(error.strerror or str(error)))
        text = f"Cannot {doing} {path}: {cause.reason}"
        raise cause.error(text, cure=cause.cure) from error


@contextmanager
def stored(path: Path) -> Iterator[None]:
    """Turn the kernel's refusals inside the block into damage of a part of a snapshot."""
    try:
        yield
    except PermissionError as error:
        text = f"Cannot read {path}: permission denied"
        raise PrivilegeError(text, cure=_OWNER) from error
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror or error}"
        raise IntegrityError(text, cure=_OTHER) from error


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Turn what is wrong with a file inside the block into a sentence about it."""
    try:
        with stored(path):
            yield
    except NewerError as error:
        text = f"{path} was written by a newer gpusnap: {error}"
        raise IncompatibleError(text, cure="Upgrade gpusnap") from error
    except FormatError as error:
        raise damaged(path, f"is damaged: {error}") from error


def damaged(path: Path, words: str) -> IntegrityError:
    """The error for a file with which something is wrong."""
    return IntegrityError(f"{path} {words}", cure=_OTHER)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a file that is open inside the block, where damage becomes a sentence."""
    with damage(path):
        descriptor = open_regular(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a private folder, which must not exist."""
    path.mkdir(_FOLDER_MODE)


def create(path: Path) -> int:
    """Open a new private file for writing; it must not exist."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, _FILE_MODE)


def open_regular(path: Path) -> int:
    """Open a regular file for reading; never a link, a device or a pipe.

    Raises:
        OSError: Also where it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def size_of(descriptor: int) -> int:
    """Length of an open file."""
    return os.fstat(descriptor).st_size


def read_whole(path: Path, limit: int) -> bytes:
    """All bytes of a regular file.

    Raises:
        OSError: Also where it is longer than ``limit`` bytes.
    """
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        if size_of(file.fileno()) > limit:
            raise OSError(errno.EFBIG, f"it is longer than {limit} bytes")
        return file.readall()


def write_all(descriptor: int, parts: Sequence["memoryview | bytes"], position: int) -> int:
    """Write parts one behind the other, all of them; the number of bytes."""
    total = sum(len(part) for part in parts)
    done = os.pwritev(descriptor, parts, position)
    # A disk that fills up and a signal both end a write early; only the next call tells which.
    rest = memoryview(b"".join(parts)[done:] if done < total else b"")
    while rest:
        count = os.pwrite(descriptor, rest, position + done)
        rest, done = rest[count:], done + count
    return total


def read_exactly(descriptor: int, buffer: memoryview, position: int) -> None:
    """Fill a buffer from a file.

    Raises:
        OSError: Also where the file ends before.
    """
    while buffer:
        count = os.preadv(descriptor, [buffer], position)
        if count == 0:
            raise OSError(errno.ENODATA, "it ends too early")
        buffer, position = buffer[count:], position + count


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
