"""Whole folders: what is in them, making them durable, moving them, taking them away."""

import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from gpusnap.repository.layout import REMOVED_PREFIX
from gpusnap.repository.storage import FOLDER_MODE, seal_file, sync_folder

_KINDS = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}

_PATIENCE_S = 0.01
"""How long one thread makes files durable until others help it."""


class Entry(msgspec.Struct, frozen=True, order=True):
    """One file or folder below a folder.

    Attributes:
        path: Relative to that folder.
        kind: What it is, in words.
        size: Its length in bytes.
        allocated: The bytes it takes on the disk.
        links: Names that it has, here and elsewhere.
    """

    path: str
    kind: str
    size: int
    allocated: int
    links: int

    @property
    def regular(self) -> bool:
        """True for a file of bytes."""
        return self.kind == "regular file"

    @property
    def folder(self) -> bool:
        """True for a folder."""
        return self.kind == "folder"


def _entry(found: os.DirEntry[str], root: Path) -> Entry:
    status = found.stat(follow_symlinks=False)
    return Entry(
        path=os.path.relpath(found.path, root),
        kind=_KINDS[stat.S_IFMT(status.st_mode)],
        size=status.st_size,
        allocated=status.st_blocks * 512,
        links=status.st_nlink,
    )


def _entries(root: Path) -> Iterator[Entry]:
    # A stack instead of recursion: a hostile tree may be deeper than Python's stack.
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as found:
            for entry in (_entry(each, root) for each in found):
                if entry.folder:
                    folders.append(root / entry.path)
                yield entry


def scan(root: Path) -> tuple[Entry, ...]:
    """All that lies below a folder, sorted by path; no link is followed."""
    return tuple(sorted(_entries(root)))


def processors() -> int:
    """How many threads can work at once for this process."""
    return len(os.sched_getaffinity(0))


def seal(root: Path) -> None:
    """Make a folder and all below private and durable.

    Raises:
        OSError: Also where something is neither a regular file nor a folder.
    """
    entries = scan(root)
    files = (root / entry.path for entry in entries if not entry.folder)
    patience = time.monotonic() + _PATIENCE_S
    for file in files:
        seal_file(file)
        if time.monotonic() > patience:
            break
    # A disk works on several at once; in memory nothing is waited for, and all are through
    with ThreadPoolExecutor(processors()) as pool:
        tuple(pool.map(seal_file, files))
    for folder in (*(root / entry.path for entry in entries if entry.folder), root):
        folder.chmod(FOLDER_MODE)
        sync_folder(folder)


def move_new(source: Path, destination: Path) -> None:
    """Rename a folder, durably, never over one that holds anything.

    rename(2) replaces an empty folder at most, so of two that race for a name exactly one
    wins, without a lock.

    Raises:
        OSError: ENOTEMPTY, EEXIST or ENOTDIR where ``destination`` is taken.
    """
    source.rename(destination)
    try:
        sync_folder(destination.parent)
    except OSError:
        destination.rename(source)
        raise


def retire(folder: Path, repository: Path) -> int:
    """Take a folder out of a repository: renamed away at once, then deleted.

    Returns:
        The bytes that were freed.
    """
    away = repository / f"{REMOVED_PREFIX}{folder.name.lstrip('.')}-{secrets.token_hex(4)}"
    folder.rename(away)
    sync_folder(repository)
    return delete(away)


def delete(folder: Path) -> int:
    """Delete a folder, which another process may be deleting as well.

    Returns:
        The bytes that were freed: those of files that have no other name.
    """
    freed = 0
    while folder.exists():
        # Two that delete the same files see each other's work as files that are missing.
        with suppress(FileNotFoundError):
            freed = freed or sum(_freeable(entry) for entry in scan(folder))
            shutil.rmtree(folder)
    return freed


def _freeable(entry: Entry) -> int:
    return entry.allocated if entry.folder or entry.links == 1 else 0
