"""Deleted files that are still in use, and file locks: what CRIU must be allowed to save."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpusnap.findings.view import DELETED, Descriptor, Seen, View

_BLOCK = 512
"""Bytes of a block in st_blocks, whatever the file system's are."""


class DeletedFile(msgspec.Struct, frozen=True):
    """A file in use whose name is gone.

    Attributes:
        pid: A process that uses it.
        name: The name it had.
        path: Where the kernel still shows it.
        allocated: Bytes it takes; holes take none.
        linked: Whether it lives on under another name.
    """

    pid: int
    name: str
    path: str
    allocated: int
    linked: bool


def deleted_files(view: View) -> tuple[DeletedFile, ...]:
    """Every deleted file once that a process of the tree has open, mapped or as its folder."""
    found: dict[tuple[int, int], DeletedFile] = {}
    for seen in view.seen:
        for link, path in _deleted(seen):
            entry = _entry(seen.pid, link, path)
            if entry is not None:
                found.setdefault(entry[0], entry[1])
    return tuple(found.values())


def _deleted(seen: Seen) -> Iterator[tuple[str, str]]:
    """Names and places of what is deleted; the same file may come several times."""
    for each in seen.descriptors:
        if each.link.startswith("/") and each.link.endswith(DELETED):
            yield each.link, each.path
    mapped = {each.path: each for each in seen.maps if each.path.endswith(DELETED)}
    for link, mapping in mapped.items():
        yield link, f"/proc/{seen.pid}/map_files/{mapping.start:x}-{mapping.end:x}"
    for name in ("cwd", "root", "exe"):
        path = f"/proc/{seen.pid}/{name}"
        try:
            link = os.readlink(path)
        except OSError:
            continue
        if link.endswith(DELETED):
            yield link, path


def _entry(pid: int, link: str, path: str) -> tuple[tuple[int, int], DeletedFile] | None:
    try:
        found = Path(path).stat()
    except OSError:  # let go of meanwhile
        return None
    # Memory without a name shows as a deleted file too; CRIU saves it by another way
    if found.st_dev == _NAMELESS or not (
        stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    ):
        return None
    return (found.st_dev, found.st_ino), DeletedFile(
        pid=pid,
        name=link.removesuffix(DELETED),
        path=path,
        allocated=found.st_blocks * _BLOCK,
        linked=stat.S_ISREG(found.st_mode) and found.st_nlink > 0,
    )


def _nameless_device() -> int:
    """The file system of shared memory that never had a name."""
    descriptor = os.memfd_create("gpusnap")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


_NAMELESS = _nameless_device()


def file_locks(view: View) -> dict[int, int]:
    """How many file locks each process of the tree holds; those with none are left out."""
    locked = set(_locked_inodes())
    if not locked:
        return {}
    counts = {
        seen.pid: sum(_locks(each) for each in seen.linked("/") if _inode(each) in locked)
        for seen in view.seen
    }
    return {pid: count for pid, count in counts.items() if count}


def _locked_inodes() -> Iterator[int]:
    """Inodes with a lock; devices are left out, for some file systems give two for one file."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        fields = [each for each in line.split() if each != "->"]
        yield int(fields[5].rpartition(":")[2])


def _inode(descriptor: Descriptor) -> int:
    found = descriptor.stat()
    return found.st_ino if found is not None else 0


def _locks(descriptor: Descriptor) -> int:
    return sum(name == "lock" for name, _ in descriptor.info())
