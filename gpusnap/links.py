"""Files in use that live on under another name alone, carried in the snapshot.

A POSIX semaphore or a shared memory file is such a file, for the C library makes it under a name
that it takes away again. CRIU gives the file one more name, ``link_remap.N`` in the same folder,
for as long as the snapshot is not restored, and the first restore takes it away. With what is
kept here that name can be made again, for every restore and on another machine.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpusnap.errors import GpusnapError
from gpusnap.findings import deleted_files, look
from gpusnap.findings.files import DeletedFile
from gpusnap.repository import SavedLink
from gpusnap.types import Target

_CRIU_NAME = "link_remap."
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def save_links(target: Target, images: Path) -> tuple[SavedLink, ...]:
    """Copy the files that CRIU gave a name, while the tree stands still.

    Args:
        target: The frozen tree.
        images: The folder of CRIU's images, which the copies join.

    Raises:
        GpusnapError: A file cannot be copied.
    """
    linked = [each for each in deleted_files(look(target, ())) if each.linked]
    saved: list[SavedLink] = []
    for deleted in linked:
        link = _describe(deleted, f"gpusnap-link-{len(saved)}")
        if link is not None:
            _copy(deleted.path, images / link.file)
            saved.append(link)
    return tuple(saved)


def _describe(deleted: DeletedFile, file: str) -> SavedLink | None:
    """None where CRIU found another way than a name in the file's folder."""
    root = Path(f"/proc/{deleted.pid}/root")
    folder = _existing(Path(deleted.name).parent, root)
    status = Path(deleted.path).stat()
    with os.scandir(root / folder.relative_to("/")) as entries:
        names = [each.name for each in entries if _is_same(each, status)]
    made = tuple(str(folder / name) for name in sorted(names) if name.startswith(_CRIU_NAME))
    if not made:
        return None
    return SavedLink(
        file=file,
        made=made,
        names=tuple(str(folder / x) for x in sorted(names) if not x.startswith(_CRIU_NAME)),
        mode=stat.S_IMODE(status.st_mode),
        user=status.st_uid,
        group=status.st_gid,
    )


def _is_same(entry: os.DirEntry[str], status: os.stat_result) -> bool:
    return entry.inode() == status.st_ino and os.path.samestat(
        entry.stat(follow_symlinks=False), status
    )


def _existing(folder: Path, root: Path) -> Path:
    """The nearest folder that is still there, as CRIU looks for one."""
    while not (root / folder.relative_to("/")).is_dir():
        folder = folder.parent
    return folder


def _copy(source: str, destination: Path) -> None:
    try:
        with Path(source).open("rb") as wanted, destination.open("xb") as copy:
            os.fchmod(copy.fileno(), 0o600)
            shutil.copyfileobj(wanted, copy)
            copy.flush()
            os.fsync(copy.fileno())
    except OSError as error:
        msg = f"A deleted file of the target cannot be copied to {destination}: {error.strerror}"
        raise GpusnapError(msg, cure="Look at the disk of the repository") from error


@contextlib.contextmanager
def links_in_place(links: Sequence[SavedLink], images: Path) -> Iterator[None]:
    """Make the names that CRIU will look for; afterwards none of them is left.

    A file that is still there under one of its other names is taken, else it is made from its
    copy, with those names, which are taken away again if the restore fails.

    Raises:
        GpusnapError: A name cannot be made.
    """
    made: list[str] = []
    try:
        for link in links:
            _put_back(link, images, made)
        yield
    except BaseException:
        _remove(made)
        raise
    _remove([path for link in links for path in link.made])


def _put_back(link: SavedLink, images: Path, made: list[str]) -> None:
    try:
        present = next((path for path in (*link.made, *link.names) if _is_file(path)), None)
        if present is None:
            present = link.made[0]
            _create(present, link, images)
            made.append(present)
            missing = [path for path in (*link.made, *link.names) if path != present]
        else:
            missing = [path for path in link.made if not _is_file(path)]
        for path in missing:
            os.link(present, path, follow_symlinks=False)
            made.append(path)
    except OSError as error:
        msg = f"The deleted file {link.made[0]} of the target cannot be made: {error.strerror}"
        raise GpusnapError(msg, cure="Make that folder as it was at the checkpoint") from error


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _create(path: str, link: SavedLink, images: Path) -> None:
    descriptor = os.open(path, _NEW, 0o600)
    with os.fdopen(descriptor, "wb") as file, (images / link.file).open("rb") as copy:
        shutil.copyfileobj(copy, file)
        os.fchown(descriptor, link.user, link.group)
        os.fchmod(descriptor, link.mode)


def _remove(paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
