"""A snapshot in the making: a hidden folder that becomes a snapshot by one rename.

::

    .draft-NAME      the hidden folder, with
        lock         held as long as the process that makes it lives
        snapshot     becomes NAME
        work         CRIU's logs; never published
"""

import errno
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from gpusnap.datapath import Pack
from gpusnap.errors import GpusnapError
from gpusnap.hookspecs import Progress
from gpusnap.repository import layout
from gpusnap.repository.digest import FileDigest, digest_files, pack_digests
from gpusnap.repository.locks import hold_folder, refusing
from gpusnap.repository.logs import keep_failure_log
from gpusnap.repository.manifest import Manifest, digest_line, encode
from gpusnap.repository.names import check_free, taken
from gpusnap.repository.snapshot import Snapshot
from gpusnap.repository.storage import (
    describe,
    free_bytes,
    let_go,
    make_folder,
    printable,
    reason,
    storage,
    sync_folder,
    write_new,
)
from gpusnap.repository.tree import Entry, delete, move_new, retire, scan, seal

_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}


class Draft:
    """An unpublished snapshot; leaving its context discards what was not published.

    Attributes:
        name: The name the snapshot will have.
        path: The hidden folder of the draft, in the repository.
        contents: The folder in it that will be the snapshot.
        destination: Where that will be.
        work: A folder for logs, outside of what is published. It lives as long as the
            context, because CRIU writes its last lines and statistics after publication.
    """

    def __init__(self, repository: Path, name: str) -> None:
        """Begin a snapshot under a checked name.

        Raises:
            NameTakenError: It exists.
            BusyError: Another process is making it.
            GpusnapError: The repository cannot be written to.
        """
        self.name = name
        self._repository = repository
        self._early: dict[str, FileDigest | OSError] = {}
        self.path = repository / f"{layout.DRAFT_PREFIX}{name}"
        self.contents = self.path / layout.DRAFT_SNAPSHOT
        self.work = self.path / layout.DRAFT_WORK
        self.destination = repository / name
        with storage("write to", repository), refusing(f"Snapshot {name} is being made"):
            self._lock: int | None = hold_folder(self.path, layout.DRAFT_LOCK)
        try:
            self._begin()
        except BaseException:
            self.discard()
            raise

    @property
    def images(self) -> Path:
        """The folder for CRIU's images."""
        return self.contents / layout.IMAGES

    @property
    def regions(self) -> Path:
        """The folder for memory saved past CRIU; made by whoever saves some."""
        return self.contents / layout.REGIONS

    def start_over(self) -> None:
        """Empty the draft: what it is to hold is made anew."""
        self._early = {}
        with storage("write to", self._repository):
            for left in (self.contents, self.work):
                delete(left)
            for folder in (self.contents, self.images, self.work):
                make_folder(folder)

    def __enter__(self) -> Self:
        """The draft itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Discard what is left: all, or after publication the logs."""
        self.discard()

    def _begin(self) -> None:
        with storage("write to", self._repository):
            check_free(self.destination)
        self.start_over()

    def free_bytes(self) -> int:
        """How many bytes can still be written."""
        return free_bytes(self.path)

    def link_fault(self, file: Path) -> str | None:
        """Why a file cannot have a second name in the draft, in words; None where it can."""
        probe = self.work / "link"
        try:
            os.link(file, probe, follow_symlinks=False)
            probe.unlink()
        except OSError as error:
            return reason(error)
        return None

    def keep_log(self, file: Path) -> None:
        """Copy a log into the snapshot, as it is now."""
        logs = self.contents / layout.LOGS
        with storage("keep the log in", logs):
            make_folder(logs)
            shutil.copyfile(file, logs / file.name)

    def keep_failure_log(self) -> Path | None:
        """Move the logs to the repository, where they outlive the draft.

        Returns:
            The log written last, so that an error can name it; None if there is none.
        """
        return keep_failure_log(self._repository, self.name, self.work)

    def sum_early(self) -> None:
        """Take the sums of complete images, which stay as they are, while others write regions.

        Raises:
            GpusnapError: They cannot be read.
        """
        inside = f"{layout.IMAGES}/"
        with storage("read", self.contents):
            files = [each for each in self._files() if each.path.startswith(inside)]
        self._early = digest_files(self.contents, files, lambda _done, _of: None)

    def _files(self) -> list[Entry]:
        return [entry for entry in scan(self.contents) if not entry.folder]

    def digest(self, progress: Progress, packs: Iterable[Pack] = ()) -> tuple[FileDigest, ...]:
        """Take the sums of all files while the disk writes them out.

        Args:
            progress: Called with bytes done and bytes in all, by one thread at a time.
            packs: Those of the regions by number. Their sums are known: they are not read.

        Returns:
            One digest a file, sorted by path.

        Raises:
            GpusnapError: A file cannot be read or written out.
        """
        with storage("write out", self.destination), ThreadPoolExecutor(1) as disk:
            sealed = disk.submit(seal, self.contents)
            packed = {digest.path: digest for digest in pack_digests(packs)}
            known = {**self._early, **packed}
            unknown = [entry for entry in self._files() if entry.path not in known]
            sums = {**digest_files(self.contents, unknown, progress), **known}
            sealed.result()
        return tuple(self._summed(path, sums[path]) for path in sorted(sums))

    def _summed(self, path: str, found: FileDigest | OSError) -> FileDigest:
        if isinstance(found, OSError):
            raise describe(found, "read", self.contents / path)
        return found

    def publish(self, manifest: Manifest) -> Snapshot:
        """Make the manifest durable, as :meth:`digest` did all else; then a snapshot by one rename.

        Args:
            manifest: Holds this draft's name and the digests of all its files.

        Returns:
            The snapshot, complete and listed.

        Raises:
            NameTakenError: Someone else put a snapshot there; theirs stays.
            GpusnapError: The files changed since the digest, or the disk refused. In both
                cases nothing is listed.
        """
        self._match(manifest)
        data = encode(manifest)
        with storage("publish", self.destination):
            # All else was made durable with the digest, and is what it was then
            write_new(self.contents / layout.MANIFEST, data)
            write_new(self.contents / layout.MANIFEST_DIGEST, digest_line(data))
            sync_folder(self.contents)
            self._move()
        return Snapshot(self.destination, manifest)

    def _match(self, manifest: Manifest) -> None:
        with storage("read", self.contents):
            present = {entry.path: entry.size for entry in self._files()}
        listed = {file.path: file.size for file in manifest.files}
        if manifest.name != self.name or present != listed:
            raise GpusnapError(
                f"The manifest of {printable(self.name)} does not list the files of its draft",
                details=sorted(map(printable, dict(present.items() ^ listed.items()))),
            )

    def _move(self) -> None:
        try:
            move_new(self.contents, self.destination)
        except OSError as error:
            raise taken(self.destination) if error.errno in _TAKEN else error from error

    def discard(self) -> None:
        """Give up the name and delete what is left; what cannot be deleted now, clean() will."""
        if self._lock is None:
            return
        try:
            with suppress(OSError):
                retire(self.path, self._repository)
        finally:
            let_go(self._lock)
            self._lock = None
