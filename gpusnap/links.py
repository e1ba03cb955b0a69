"""Files in use that live on under another name alone, carried in the snapshot.

A POSIX semaphore or a shared memory file is such a file, for the C library makes it under a name
that it takes away again. CRIU gives the file one more name, ``link_remap.N`` in the same folder,
for as long as the snapshot is not restored, and the first restore takes it away. With what is
kept here that name can be made again, for every restore and on another machine.

A file that is still there may have changed since: the bytes in the snapshot are what counts.
"""

import contextlib
import os
import shlex
import shutil
import stat
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from gpusnap.errors import GpusnapError, IncompatibleError
from gpusnap.findings import deleted_files, look
from gpusnap.findings.files import DeletedFile
from gpusnap.journal import state_directory
from gpusnap.repository import SavedLink
from gpusnap.repository.locks import waiting_lock
from gpusnap.repository.storage import open_regular
from gpusnap.types import Target

_CRIU_NAME = "link_remap."
_LOCK = "links.lock"
_CHUNK_BYTES = 1 << 20
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

    A file that is still there under one of its names is taken where it is as it was saved, else
    it is made from its copy. Names that are made here are taken away again if the restore fails.
    One restore at a time is in here, for two of one snapshot make and take away the same names.

    Raises:
        IncompatibleError: A file that is still there is not as it was saved.
        GpusnapError: A name cannot be made.
    """
    made: list[str] = []
    with contextlib.ExitStack() as alone:
        if links:
            _wait_for_others(alone)
        try:
            for link in links:
                _put_back(link, images, made)
            yield
        except BaseException:
            _remove(made)
            raise
        _remove([path for link in links for path in link.made])


def _wait_for_others(alone: contextlib.ExitStack) -> None:
    lock = state_directory() / _LOCK
    try:
        alone.enter_context(waiting_lock(lock))
    except OSError as error:
        msg = f"The lock {lock} cannot be taken: {error.strerror}"
        raise GpusnapError(msg, cure="Set GPUSNAP_STATE_DIR to a writable folder") from error


def _put_back(link: SavedLink, images: Path, made: list[str]) -> None:
    paths = (*link.made, *link.names)
    try:
        present = list(filter(_is_file, paths))
        _refuse_others([path for path in present if not _is_as_saved(path, link, images)])
        if not present:
            _create(paths[0], link, images)
            made.append(paths[0])
            present = [paths[0]]
        for path in paths:
            if path not in present:
                os.link(present[0], path, follow_symlinks=False)
                made.append(path)
    except OSError as error:
        msg = f"The deleted file {link.made[0]} of the target cannot be made: {error.strerror}"
        raise GpusnapError(msg, cure="Make that folder as it was at the checkpoint") from error


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _is_as_saved(path: str, link: SavedLink, images: Path) -> bool:
    """Another user's file is not, whatever its bytes: its owner could write into the target."""
    with (
        BufferedReader(open_regular(Path(path))) as file,
        (images / link.file).open("rb") as copy,
    ):
        status = os.fstat(file.fileno())
        return (
            status.st_uid == link.user
            and status.st_size == os.fstat(copy.fileno()).st_size
            and _same_bytes(file, copy)
        )


def _same_bytes(one: BinaryIO, other: BinaryIO) -> bool:
    while chunk := one.read(_CHUNK_BYTES):
        if chunk != other.read(_CHUNK_BYTES):
            return False
    return True


def _refuse_others(paths: Sequence[str]) -> None:
    if not paths:
        return
    listed = " ".join(map(shlex.quote, paths))
    msg = f"{paths[0]}, which the target uses, is no longer as it was at the checkpoint"
    raise IncompatibleError(
        msg, cure=f"Where no process needs it any more, remove it and restore again: rm {listed}"
    )


def _create(path: str, link: SavedLink, images: Path) -> None:
    """Whole or not at all: what is left here would be taken for the target's."""
    descriptor = os.open(path, _NEW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file, (images / link.file).open("rb") as copy:
            shutil.copyfileobj(copy, file)
            os.fchown(descriptor, link.user, link.group)
            os.fchmod(descriptor, link.mode)
    except BaseException:
        _remove([path])
        raise


def _remove(paths: Sequence[str]) -> None:
    """A name that stays does no harm; an error would end a tree that CRIU restored."""
    for path in paths:
        with contextlib.suppress(OSError):
            Path(path).unlink()
