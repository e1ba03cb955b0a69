"""Careful and durable access to the single files and folders of a repository.

How the disk's refusals are told, and how a file is opened, is the data path's: the names that
both need are handed on from there.
"""

import os
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from gpusnap.datapath import files
from gpusnap.datapath.files import (
    FILE_MODE,
    FOLDER_MODE,
    describe,
    let_go,
    printable,
    read_whole,
    reason,
    require_damage,
    storage,
    sync_folder,
)
from gpusnap.errors import GpusnapError, IntegrityError, UsageError

__all__ = [
    "FILE_MODE",
    "FOLDER_MODE",
    "absolute",
    "as_path",
    "describe",
    "free_bytes",
    "let_go",
    "make_folder",
    "open_regular",
    "printable",
    "read_part",
    "reason",
    "require_damage",
    "seal_file",
    "storage",
    "sync_folder",
    "write_durably",
    "write_new",
]


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


def make_folder(path: Path) -> None:
    """Make a private folder, unless it is there."""
    with suppress(FileExistsError):
        path.mkdir(FOLDER_MODE)


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading, unbuffered; never a link, a device or a pipe.

    Raises:
        OSError: Also where it is not a regular file.
    """
    return FileIO(files.open_regular(path), "rb")


def read_part(path: Path, limit: int) -> bytes:
    """All bytes of a file that gpusnap wrote, which is damaged where it cannot be read.

    Raises:
        IntegrityError: It is no regular file, too long, or the disk does not give it back.
        OSError: It is not there or may not be read.
    """
    try:
        return read_whole(path, limit)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        raise
    except OSError as error:
        require_damage(error, path)
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


def free_bytes(path: Path) -> int:
    """How many bytes an ordinary user can still write to the file system of a path."""
    with storage("read", path):
        space = os.statvfs(path)
    return space.f_bavail * space.f_frsize
