"""Careful and durable access to single files and folders; the kernel's refusals as sentences."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import msgspec

from gpusnap.errors import (
    GpusnapError,
    IntegrityError,
    NotFoundError,
    PrivilegeError,
    UsageError,
)

FILE_MODE = 0o600
FOLDER_MODE = 0o700


class _Cause(msgspec.Struct, frozen=True):
    reason: str
    cure: str | None = None
    error: type[GpusnapError] = GpusnapError


_SPACE = "Free space on that file system, or choose another repository"
_OWNER = "Run as the owner of the repository, or as root"
_CAUSES = {
    errno.ENOSPC: _Cause("the disk is full", _SPACE),
    errno.EDQUOT: _Cause("the disk quota is used up", _SPACE),
    errno.EFBIG: _Cause("the limit for the size of a file is reached", "Raise it: ulimit -f"),
    errno.EROFS: _Cause("the file system is read-only", "Choose another repository"),
    errno.EACCES: _Cause("permission denied", _OWNER, PrivilegeError),
    errno.EPERM: _Cause("the operation is not permitted", _OWNER, PrivilegeError),
    errno.ENOENT: _Cause("it does not exist", None, NotFoundError),
    errno.ENOTDIR: _Cause("a part of the path is a file", "Name a folder", UsageError),
    errno.ENAMETOOLONG: _Cause("the name is too long", "Choose a shorter name", UsageError),
    errno.ELOOP: _Cause("a symbolic link stands where a file is expected"),
    errno.EXDEV: _Cause("it is on another file system"),
    errno.EMLINK: _Cause("it has as many links as its file system allows"),
}


def printable(path: object) -> str:
    """A path as text fit for a terminal and for JSON, whatever bytes it is made of."""
    return repr(str(path))[1:-1]


def as_path(path: object) -> Path:
    """What a caller gave as a path.

    Raises:
        UsageError: It can be none.
    """
    if not isinstance(path, str | Path) or "\0" in str(path):
        raise UsageError(f"{path!r} is not a path", cure="Give text or a pathlib.Path")
    return Path(path)


def absolute(path: str | Path) -> Path:
    """A path that stays the same whatever becomes of the current folder and of links.

    Raises:
        UsageError: It is no path.
        GpusnapError: Its links lead in a circle.
    """
    path = as_path(path)
    try:
        with storage("find", path):
            return path.resolve()
    except RuntimeError as error:  # what Python before 3.13 makes of a circle
        raise GpusnapError(f"The links of {printable(path)} lead in a circle") from error


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


def make_folder(path: Path) -> None:
    """Make a private folder, unless it is there."""
    with suppress(FileExistsError):
        path.mkdir(FOLDER_MODE)


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading, unbuffered; never a link, a device or a pipe.

    Raises:
        OSError: Also where it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return FileIO(descriptor, "rb")


def read_small(path: Path, limit: int) -> bytes:
    """All bytes of a regular file.

    Raises:
        OSError: It cannot be read, or is longer than ``limit`` bytes.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EINVAL, f"longer than {limit} bytes", str(path))
        return file.readall()


def read_part(path: Path, limit: int) -> bytes:
    """All bytes of a file that gpusnap wrote, which is damaged where it cannot be read.

    Raises:
        IntegrityError: It is no regular file, too long, or the disk does not give it back.
        OSError: It is not there or may not be read.
    """
    try:
        return read_small(path, limit)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        raise
    except OSError as error:
        raise IntegrityError(f"{printable(path)} is damaged: {reason(error)}") from error


def write_durably(file: BinaryIO, data: bytes) -> None:
    """Write all of the bytes, down to the disk."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def write_new(path: Path, data: bytes) -> None:
    """Write a private file that must not exist yet, down to the disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, FILE_MODE), "wb") as file:
        write_durably(file, data)


def seal_file(path: Path) -> None:
    """Make a file private and its bytes durable."""
    with open_regular(path) as file:
        os.fchmod(file.fileno(), FILE_MODE)
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(path: Path) -> int:
    """How many bytes an ordinary user can still write to the file system of a path."""
    with storage("read", path):
        space = os.statvfs(path)
    return space.f_bavail * space.f_frsize
