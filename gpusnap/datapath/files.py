"""Files that gpusnap writes: made, opened and read with care; the kernel's refusals as sentences.

The repository uses this too, so that one disk is told of in the same words everywhere.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gpusnap.datapath.records import FormatError, NewerError
from gpusnap.errors import (
    GpusnapError,
    IncompatibleError,
    IntegrityError,
    NotFoundError,
    PrivilegeError,
    UsageError,
)

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_SPACE = "Free space on that file system, or choose another repository"
_OWNER = "Run as the owner of the repository, or as root"
_OTHER = "Restore another snapshot"
_LIMITS = frozenset({errno.EMFILE, errno.ENFILE})
"""What keeps a file from being opened and says nothing of it."""


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
    errno.ENOENT: _Cause("it does not exist", None, NotFoundError),
    errno.ENOTDIR: _Cause("a part of the path is a file", "Name a folder", UsageError),
    errno.ENAMETOOLONG: _Cause("the name is too long", "Choose a shorter name", UsageError),
    errno.ELOOP: _Cause("a symbolic link stands where a file is expected"),
    errno.EXDEV: _Cause("it is on another file system"),
    errno.EMLINK: _Cause("it has as many links as its file system allows"),
    errno.EMFILE: _Cause("gpusnap has too many files open", "Raise the limit: ulimit -n"),
    errno.ENFILE: _Cause("the machine has too many files open", "Raise the limit: fs.file-max"),
}


def printable(path: object) -> str:
    """A path as text fit for a terminal and for JSON, whatever bytes it is made of."""
    return repr(str(path))[1:-1]


def reason(error: OSError) -> str:
    """What the kernel said, in a few words."""
    cause = _CAUSES.get(error.errno or 0)
    return cause.reason if cause else error.strerror or str(error)


def describe(error: OSError, doing: str, path: Path) -> GpusnapError:
    """The class, sentence and cure for what the kernel refused."""
    cause = _CAUSES.get(error.errno or 0, _Cause(reason(error)))
    return cause.error(f"Cannot {doing} {printable(path)}: {cause.reason}", cure=cause.cure)


@contextmanager
def storage(doing: str, path: Path) -> Iterator[None]:
    """Turn the kernel's refusals inside the block into sentences about ``path``."""
    try:
        yield
    except OSError as error:
        raise describe(error, doing, path) from error


def require_damage(error: OSError, path: Path) -> None:
    """Raise where a file could not be read for want of descriptors: that is no damage of it."""
    if error.errno in _LIMITS:
        raise describe(error, "read", path) from error


@contextmanager
def stored(path: Path, cure: str = _OTHER) -> Iterator[None]:
    """Turn the kernel's refusals inside the block into damage of a part of a snapshot."""
    try:
        yield
    except PermissionError as error:
        text = f"Cannot read {path}: permission denied"
        raise PrivilegeError(text, cure=_OWNER) from error
    except OSError as error:
        require_damage(error, path)
        text = f"{path} cannot be read: {error.strerror or error}"
        raise IntegrityError(text, cure=cure) from error


@contextmanager
def damage(path: Path, cure: str = _OTHER) -> Iterator[None]:
    """Turn what is wrong with a file inside the block into a sentence about it.

    Args:
        path: The file; nothing but reading it belongs into the block.
        cure: What can be done where it is damaged.
    """
    try:
        with stored(path, cure):
            yield
    except NewerError as error:
        text = f"{path} was written by a newer gpusnap: {error}"
        raise IncompatibleError(text, cure="Upgrade gpusnap") from error
    except FormatError as error:
        raise damaged(path, f"is damaged: {error}", cure) from error


def damaged(path: Path, words: str, cure: str = _OTHER) -> IntegrityError:
    """The error for a file with which something is wrong."""
    return IntegrityError(f"{path} {words}", cure=cure)


@contextmanager
def opened(path: Path, cure: str = _OTHER) -> Iterator[int]:
    """The descriptor of a file that is open inside the block, where damage becomes a sentence."""
    with damage(path, cure):
        descriptor = open_regular(path)
        try:
            yield descriptor
        finally:
            let_go(descriptor)


class OpenPack:
    """The one pack of several that a thread has open: those before it are closed."""

    def __init__(self, path: Callable[[int], Path]) -> None:
        """Take packs from where ``path`` says that they are."""
        self._path = path
        self._number = -1
        self._descriptor = -1

    def open(self, number: int) -> int:
        """The descriptor of a pack, until the next one is opened.

        Raises:
            IntegrityError: The pack is missing, or no regular file.
            PrivilegeError: It may not be read.
            GpusnapError: Too many files are open.
        """
        if number != self._number:
            self.close()
            path = self._path(number)
            with damage(path):
                self._descriptor = open_regular(path)
            self._number = number
        return self._descriptor

    def close(self) -> None:
        """Close what is open."""
        if self._number != -1:
            let_go(self._descriptor)
            self._number = -1


def make_folder(path: Path) -> None:
    """Make a private folder, which must not exist."""
    path.mkdir(FOLDER_MODE)


def create(path: Path) -> int:
    """Open a new private file for writing; it must not exist."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, FILE_MODE)


def open_regular(path: Path) -> int:
    """Open a regular file for reading; never a link, a device or a pipe.

    Raises:
        OSError: Also where it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        let_go(descriptor)
        raise
    if not regular:
        let_go(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def let_go(descriptor: int) -> None:
    """Close what nothing was written through: what a disk that fails says to that is no matter."""
    with suppress(OSError):
        os.close(descriptor)


def size_of(descriptor: int) -> int:
    """Length of an open file."""
    return os.fstat(descriptor).st_size


def read_whole(path: Path, limit: int) -> bytes:
    """All bytes of a regular file.

    Raises:
        OSError: It cannot be read, is no regular file, or is longer than ``limit`` bytes.
    """
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        if size_of(file.fileno()) > limit:
            raise OSError(errno.EINVAL, f"longer than {limit} bytes", str(path))
        return file.readall()


def write_all(descriptor: int, parts: Sequence["memoryview | bytes"], position: int) -> int:
    """Write parts one behind the other, all of them; the number of bytes."""
    total = sum(len(part) for part in parts)
    done = 0
    # A disk that fills up and a signal both end a write early; only the next call tells which.
    while done < total:
        count = os.pwritev(descriptor, _behind(parts, done) if done else parts, position + done)
        if count == 0:  # what some file systems say where no more fits
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += count
    return total


def _behind(parts: Sequence["memoryview | bytes"], done: int) -> list["memoryview | bytes"]:
    """What is left of parts, uncopied: where O_DIRECT took them, it takes the rest."""
    rest: list[memoryview | bytes] = []
    for part in parts:
        if done < len(part):
            rest.append(memoryview(part)[done:])
        done = max(0, done - len(part))
    return rest


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
        let_go(descriptor)
