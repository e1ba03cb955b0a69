"""The files that a job writes: how long they were at a snapshot, and their way back to that.

CRIU refuses to restore a process that has a file open for writing which has another length than
at the dump; only files that are appended to, and not read, may have grown.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from gpusnap.jobs.record import writing

STDOUT, STDERR = "stdout", "stderr"
_APPENDED = os.O_WRONLY | os.O_APPEND


class Length(msgspec.Struct, frozen=True):
    """How long a file was, in bytes; the numbers tell it from another one of the same name."""

    path: str
    device: int
    inode: int
    size: int


def read_lengths(folder: Path, pids: Iterable[int]) -> tuple[Length, ...]:
    """Measure what would have to be cut before processes can be restored as they are now.

    Args:
        folder: The run's, whose files ``stdout`` and ``stderr`` are always among them.
        pids: The processes, which should stand still. Of their files those count that are open
            for writing otherwise than for appending.
    """
    found = {}
    own = (str(folder / name) for name in (STDOUT, STDERR))
    for path in (*own, *_written(pids)):
        with suppress(OSError):
            status = Path(path).stat()
            if stat.S_ISREG(status.st_mode):
                found[path] = Length(path, status.st_dev, status.st_ino, status.st_size)
    return tuple(found.values())


def _written(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    path = os.readlink(f"/proc/{pid}/fd/{number}")
                    if path.startswith("/") and _is_written(pid, number):
                        yield path


def _is_written(pid: int, number: str) -> bool:
    lines = Path(f"/proc/{pid}/fdinfo/{number}").read_text().splitlines()
    flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
    if flags & os.O_ACCMODE == os.O_RDONLY:
        return False
    return flags & (os.O_ACCMODE | os.O_APPEND) != _APPENDED


def cut_back(folder: Path, lengths: Iterable[Length]) -> tuple[str, ...]:
    """Cut files that have grown since to the length they had.

    A file that is gone, shorter, or another one by now is left alone.

    Args:
        folder: The run's, for what is said where it cannot be done.
        lengths: How long they were.

    Returns:
        The paths of what was cut.

    Raises:
        GpusnapError: A file cannot be written to.
    """
    with writing(folder):
        return tuple(length.path for length in lengths if _cut(length))


def _cut(length: Length) -> bool:
    try:
        found = Path(length.path).stat()
    except FileNotFoundError:
        return False
    if (found.st_dev, found.st_ino) != (length.device, length.inode):
        return False
    if found.st_size <= length.size:
        return False
    os.truncate(length.path, length.size)
    return True
