"""A published snapshot: a folder that never changes."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import msgspec

from gpusnap.errors import IntegrityError, NotFoundError
from gpusnap.repository.layout import IMAGES, LOGS, MANIFEST, MANIFEST_DIGEST, REGIONS
from gpusnap.repository.locks import reading_lock, refusing
from gpusnap.repository.manifest import MANIFEST_LIMIT, Manifest, decode, digest_line
from gpusnap.repository.storage import as_path, printable, read_part, storage


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot on disk with its manifest, whose digest was right when it was opened.

    Attributes:
        path: The snapshot's folder.
        manifest: What is known of it.
    """

    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """Its name in the repository it is in now."""
        return self.path.name

    @property
    def images(self) -> Path:
        """The folder with CRIU's images."""
        return self.path / IMAGES

    @property
    def regions(self) -> Path:
        """The folder with memory saved past CRIU, absent if there is none."""
        return self.path / REGIONS

    @property
    def logs(self) -> Path:
        """The folder with CRIU's logs of the checkpoint, absent if none were kept."""
        return self.path / LOGS

    @property
    def created(self) -> datetime:
        """When it was made, in UTC."""
        return datetime.fromisoformat(self.manifest.created)

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return self.manifest.size

    @property
    def stored_size(self) -> int:
        """Bytes of the files that were written for it: without packs that were its parent's."""
        memory = self.manifest.memory
        return self.size - (memory.linked if memory else 0)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep others from removing it while it is read; works on a read-only file system.

        Raises:
            BusyError: It is being removed.
            NotFoundError: It is gone.
        """
        # Only what the lock meets is translated, not what happens while it is held.
        with ExitStack() as held:
            with storage("hold", self.path), refusing(f"{self.name} is being removed"):
                held.enter_context(reading_lock(self.path / MANIFEST))
            yield


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Keep others from removing a snapshot while it is read, however damaged it is.

    One that has no manifest to lock is not held.

    Args:
        folder: The snapshot's.

    Raises:
        NotFoundError: There is no snapshot, or no more.
        BusyError: It is being removed.
    """
    with ExitStack() as held:
        # Why a manifest cannot be opened is for those to say who read it.
        with suppress(OSError), refusing(f"{folder.name} is being removed"):
            held.enter_context(reading_lock(folder / MANIFEST))
        require_snapshot(folder)
        yield


def is_snapshot(folder: Path) -> bool:
    """True for a folder that is a snapshot, or what is left of one."""
    with storage("open", folder), suppress(FileNotFoundError, NotADirectoryError):
        return not {MANIFEST, MANIFEST_DIGEST, IMAGES}.isdisjoint(os.listdir(folder))
    return False


def require_snapshot(folder: Path) -> None:
    """Raise NotFoundError unless the folder is a snapshot, or what is left of one."""
    if not is_snapshot(folder):
        raise NotFoundError(
            f"There is no snapshot at {printable(folder)}",
            cure="gpusnap list shows what there is",
        )


def _part(path: Path, limit: int) -> bytes:
    try:
        return read_part(path, limit)
    except FileNotFoundError as error:
        raise IntegrityError(f"{printable(path)} is missing") from error


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a snapshot.

    Raises:
        IntegrityError: The manifest or its digest is missing or damaged.
        IncompatibleError: A newer gpusnap wrote it.
        PrivilegeError: It may not be read.
    """
    path = folder / MANIFEST
    with storage("read", path):
        data = _part(path, MANIFEST_LIMIT)
        expected = digest_line(data)
        if _part(folder / MANIFEST_DIGEST, len(expected)) != expected:
            raise IntegrityError(f"{printable(path)} is not what {MANIFEST_DIGEST} says it was")
    return decode(data, path)


def open_snapshot(path: str | Path) -> Snapshot:
    """Open the snapshot in a folder.

    Raises:
        UsageError: It is no path.
        NotFoundError: There is no snapshot.
        IntegrityError: Its manifest is damaged.
        IncompatibleError: A newer gpusnap wrote it.
        PrivilegeError: It may not be read.
    """
    folder = as_path(path)
    require_snapshot(folder)
    return Snapshot(folder, read_manifest(folder))
