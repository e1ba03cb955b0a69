"""Folders of which each branch has a version of its own: the others do not see what it writes."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from gpusnap.criu import Overlay
from gpusnap.errors import GpusnapError, NotFoundError, UsageError
from gpusnap.jobs.originals import Written

_SPECIAL = frozenset(",:\\\"'\n")
"""What means something in the options of a mount."""


def check_private(folders: Iterable[str | Path]) -> tuple[Path, ...]:
    """Absolute paths of existing folders.

    Raises:
        NotFoundError: One does not exist.
        UsageError: One cannot be private.
    """
    found = tuple(Path(os.path.realpath(folder)) for folder in folders)
    for folder in found:
        if not folder.is_dir():
            raise NotFoundError(f"There is no folder {folder}")
        if folder == Path("/") or _SPECIAL & set(str(folder)):
            raise UsageError(f"The folder {folder} cannot be private", cure="Choose another one")
        if any(folder != other and folder.is_relative_to(other) for other in found):
            raise UsageError(f"{folder} is in another private folder", cure="Leave it out")
    return tuple(dict.fromkeys(found))


def changes_of(folder: Path, number: int) -> Path:
    """Where a branch's version of a folder is."""
    return folder.with_name(f"{folder.name}.branch-{number}")


def check_new(folders: Iterable[Path], count: int) -> None:
    """See that nothing is in the way of so many branches.

    Raises:
        GpusnapError: There are results of earlier ones.
    """
    for folder in folders:
        for number in range(1, count + 1):
            if changes_of(folder, number).exists():
                msg = f"{changes_of(folder, number)} is there already"
                raise GpusnapError(msg, cure="Move it away, or remove it")


def make_overlay(folder: Path, number: int, written: Iterable[Written]) -> Overlay:
    """Make what a branch's version needs.

    Args:
        folder: The folder.
        number: The branch's.
        written: Files that the snapshot has open for writing. The branch gets a shorter copy of
            one that has grown since: CRIU may refuse it, and what was added is none of the
            branch's.

    Raises:
        GpusnapError: The folders cannot be made.
    """
    changes = changes_of(folder, number)
    work = changes.with_name(f".{changes.name}.work")
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        _make_like(folder, changes)
        for each in written:
            if each.path.is_relative_to(folder):
                _shorten(each, folder, changes)
    except OSError as error:
        msg = f"{changes} cannot be made: {error.strerror}"
        raise GpusnapError(msg, cure="See to the rights and the space there") from None
    return Overlay(folder=folder, changes=changes, work=work)


def _shorten(written: Written, folder: Path, changes: Path) -> None:
    length = written.length
    if length is None or length >= written.path.stat().st_size:
        return
    inside = written.path.relative_to(folder)
    for parent in reversed(inside.parents[:-1]):
        if not (changes / parent).exists():
            _make_like(folder / parent, changes / parent)
    shutil.copyfile(written.path, changes / inside)
    os.truncate(changes / inside, length)
    _make_like(written.path, changes / inside)


def _make_like(old: Path, new: Path) -> None:
    """Give a file or folder, which is made if need be, another one's owner, rights and times."""
    if not new.exists():
        new.mkdir()
    os.chown(new, old.stat().st_uid, old.stat().st_gid)
    shutil.copystat(old, new)


def forget_work(overlays: Iterable[Overlay]) -> None:
    """Remove what only the kernel needed."""
    for overlay in overlays:
        shutil.rmtree(overlay.work, ignore_errors=True)
