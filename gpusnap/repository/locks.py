"""Locks that end with the process that holds them.

flock(2) on a regular file: the kernel drops it when the last descriptor closes, however the
process ends, so what a dead process held is told from what a living one holds.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpusnap.errors import BusyError, GpusnapError
from gpusnap.repository.storage import FILE_MODE, let_go, make_folder, printable


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _lock(path: Path, flags: int, operation: int, *, same: bool = False) -> int:
    """Open and lock a file; if wanted, only the one that has the name once it is locked."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, operation)
        # Between the two steps it may have been moved or removed.
        if same and not _same_file(descriptor, path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except OSError:
        let_go(descriptor)
        raise
    return descriptor


def _require_folder(path: Path) -> None:
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise GpusnapError(f"{printable(path)} is not a folder", cure="Remove it")


def hold_folder(folder: Path, lock: str) -> int:
    """Make a folder, unless it is there, and lock the file ``lock`` in it.

    Returns:
        A descriptor; closing it gives the folder up.

    Raises:
        BlockingIOError: A living process holds it.
        GpusnapError: Something else has the folder's name.
    """
    flags, operation = os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        make_folder(folder)
        # Whoever held it before may have moved the folder away between any two steps.
        with suppress(FileNotFoundError):
            _require_folder(folder)
            return _lock(folder / lock, flags, operation, same=True)


@contextmanager
def refusing(text: str) -> Iterator[None]:
    """Turn a lock that another process holds into a sentence."""
    try:
        yield
    except BlockingIOError as error:
        raise BusyError(text, cure="Wait until that has ended, then try again") from error


@contextmanager
def waiting_lock(path: Path) -> Iterator[int]:
    """Hold the only lock on a file, made if need be; waits for another holder.

    Yields:
        The file's descriptor, open for writing.
    """
    descriptor = _lock(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def reading_lock(path: Path) -> Iterator[None]:
    """Share a file with other readers; works on a read-only file system.

    Raises:
        BlockingIOError: Someone is removing it.
        FileNotFoundError: It is not there, or no more.
    """
    # Without waiting for a writer, where a pipe has the file's name.
    flags, operation = os.O_RDONLY | os.O_NONBLOCK, fcntl.LOCK_SH | fcntl.LOCK_NB
    descriptor = _lock(path, flags, operation, same=True)
    try:
        yield
    finally:
        let_go(descriptor)


@contextmanager
def removing_lock(path: Path) -> Iterator[None]:
    """Keep new readers off a file.

    Raises:
        BlockingIOError: Someone reads it.
    """
    # Read and write, because a network file system wants that for an exclusive lock.
    descriptor = _lock(path, os.O_RDWR, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        let_go(descriptor)
