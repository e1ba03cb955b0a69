"""A folder of snapshots."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Self

import msgspec

from gpusnap.errors import BusyError, GpusnapError, NotFoundError, UsageError
from gpusnap.repository import layout, names
from gpusnap.repository.config import make_config, read_config
from gpusnap.repository.contents import Contents, Damaged
from gpusnap.repository.draft import Draft
from gpusnap.repository.locks import hold_folder, reading_lock, refusing, removing_lock
from gpusnap.repository.pruning import Pruned, Refused, Removed, remove_each, to_remove
from gpusnap.repository.retention import RetentionPolicy, decide
from gpusnap.repository.snapshot import Snapshot, is_snapshot, open_snapshot
from gpusnap.repository.storage import absolute, free_bytes, let_go, printable, storage
from gpusnap.repository.tree import delete, retire

_TRIES = 1000
"""More snapshots of one process in one second than anyone makes."""


@contextmanager
def _only_holder(snapshot: Snapshot) -> Iterator[None]:
    """Keep readers off the very snapshot that was opened.

    Raises:
        BlockingIOError: Someone reads it.
        NotFoundError: Someone removes it, or another snapshot has its name now.
    """
    manifest = snapshot.path / layout.MANIFEST
    gone = NotFoundError(f"Snapshot {printable(snapshot.name)} is gone")
    with ExitStack() as locked:
        try:
            locked.enter_context(removing_lock(manifest))
        except BlockingIOError:
            if _is_being_removed(manifest):
                raise gone from None
            raise
        # It may have been removed since it was opened, and its name be in use again.
        if open_snapshot(snapshot.path).manifest.id != snapshot.manifest.id:
            raise gone
        yield


def _is_being_removed(manifest: Path) -> bool:
    try:
        with reading_lock(manifest):
            return False
    except BlockingIOError:
        return True


class Repository(msgspec.Struct, frozen=True):
    """A repository that exists, of a format this code knows.

    Attributes:
        path: Its folder.
        id: Tells it from every other.
    """

    path: Path
    id: str

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a repository; writes nothing.

        Raises:
            NotFoundError: There is none.
            UsageError: It is no path, or that of a file.
            IntegrityError: Its configuration is damaged.
            IncompatibleError: A newer gpusnap made it.
            PrivilegeError: It may not be read.
        """
        folder = absolute(path)
        return cls(folder, read_config(folder).id)

    @classmethod
    def create(cls, path: str | Path) -> Self:
        """Open a repository, which is made unless it is there; errors as :meth:`open`."""
        folder = absolute(path)
        return cls(folder, make_config(folder).id)

    def _names(self) -> tuple[str, ...]:
        with storage("read", self.path), os.scandir(self.path) as found:
            folders = [each.name for each in found if each.is_dir(follow_symlinks=False)]
        return tuple(sorted(name for name in folders if names.problem(name) is None))

    def _load(self) -> Iterator[Snapshot | Damaged]:
        for path in (self.path / name for name in self._names()):
            # It may be removed while the others are read; a folder of another kind is no matter.
            with suppress(NotFoundError):
                try:
                    yield open_snapshot(path)
                except NotFoundError:
                    raise
                except GpusnapError as error:
                    yield Damaged(path, error.text)

    def contents(self) -> Contents:
        """All snapshots, each opened once."""
        found = tuple(self._load())
        opened = [each for each in found if isinstance(each, Snapshot)]
        return Contents(
            snapshots=tuple(sorted(opened, key=lambda each: (each.created, each.name))),
            damaged=tuple(each for each in found if isinstance(each, Damaged)),
        )

    def snapshots(self) -> tuple[Snapshot, ...]:
        """All snapshots that can be opened, oldest first."""
        return self.contents().snapshots

    def damaged(self) -> tuple[Damaged, ...]:
        """All snapshots that cannot be opened, sorted by name."""
        return self.contents().damaged

    def find(self, name: str) -> Snapshot:
        """The snapshot of a name, of a unique beginning of one, or the ``latest``.

        Raises:
            NotFoundError: There is none.
            UsageError: Several names begin so, or no name can.
            IntegrityError: Its manifest is damaged.
            IncompatibleError: A newer gpusnap wrote it.
        """
        if name == layout.LATEST:
            return self._latest()
        return open_snapshot(self._locate(name))

    def locate(self, name: str) -> Path:
        """The folder :meth:`find` would open, also where it is too damaged to open."""
        return self._latest().path if name == layout.LATEST else self._locate(name)

    def _latest(self) -> Snapshot:
        found = self.snapshots()
        if not found:
            raise NotFoundError(f"Repository {printable(self.path)} holds no snapshot")
        return found[-1]

    def _locate(self, name: str) -> Path:
        present = self._names()
        if name in present:
            return self.path / name
        names.check(name)
        matches = [each for each in present if each.startswith(name)]
        return self._only(name, [each for each in matches if is_snapshot(self.path / each)])

    def _only(self, name: str, matches: Sequence[str]) -> Path:
        if len(matches) > 1:
            raise UsageError(
                f"'{name}' is the beginning of {len(matches)} names",
                cure=f"Name one of them: {', '.join(matches[:10])}",
            )
        if not matches:
            raise NotFoundError(
                f"There is no snapshot '{name}' in {printable(self.path)}",
                cure="gpusnap list shows what there is",
            )
        return self.path / matches[0]

    def prepare(self, name: str | None, *, process_name: str = "process") -> Draft:
        """Begin a snapshot.

        Args:
            name: Its name; None to have one made of the process's name and the time.
            process_name: For a name that is made.

        Raises:
            UsageError: No snapshot may have the name, or one has it.
            BusyError: Another process is making it.
            GpusnapError: The repository cannot be written to.
        """
        if name is not None:
            return Draft(self.path, names.check(name))
        for candidate in islice(names.generated(process_name), _TRIES):
            with suppress(names.NameTakenError, BusyError):
                return Draft(self.path, candidate)
        raise BusyError(f"All names for a snapshot of {process_name} are taken in this second")

    def remove(self, snapshot: Snapshot | Damaged) -> int:
        """Delete a snapshot: it is gone from the listing at once, or not at all.

        Returns:
            The bytes that were freed.

        Raises:
            NotFoundError: It is gone already, or another has its name now.
            UsageError: It is in another repository.
            BusyError: Someone restores from it.
            GpusnapError: The repository cannot be written to.
        """
        path = snapshot.path
        in_use = f"Snapshot {printable(path.name)} is in use"
        with storage("remove", path), refusing(in_use), ExitStack() as locked:
            if not path.parent.samefile(self.path):
                raise UsageError(f"{printable(path)} is in another repository")
            if isinstance(snapshot, Snapshot):
                locked.enter_context(_only_holder(snapshot))
            return retire(path, self.path)

    def prune(self, policy: RetentionPolicy, *, dry_run: bool = False) -> Pruned:
        """Remove the snapshots that no rule of a policy keeps, and what crashes left.

        Damaged snapshots stay. What cannot be removed does not keep the rest.

        Args:
            policy: Which snapshots are kept.
            dry_run: Only say what would be removed.

        Raises:
            UsageError: Of a group nothing would be kept; then nothing is removed.
            GpusnapError: The repository cannot be read.
        """
        found = self.contents()
        groups = decide(found.snapshots, policy)
        doomed = to_remove(groups)
        if dry_run:
            removed = tuple(map(Removed, doomed))
            return Pruned(groups=groups, removed=removed, damaged=found.damaged)
        removed, refused = remove_each(doomed, self.remove)
        freed = sum(each.bytes_freed for each in removed)
        try:
            freed += self.clean()
        except GpusnapError as error:
            refused = (*refused, Refused(self.path, error))
        return Pruned(
            groups=groups,
            removed=removed,
            refused=refused,
            damaged=found.damaged,
            bytes_freed=freed,
        )

    def clean(self) -> int:
        """Delete what crashes left: drafts of dead processes, snapshots half removed.

        What cannot be deleted does not keep the rest; what gpusnap never made is left alone.

        Returns:
            The bytes that were freed.

        Raises:
            GpusnapError: The repository cannot be read or written to.
        """
        freed, failure = 0, None
        with storage("clean", self.path):
            for path in sorted(self.path.iterdir()):
                try:
                    freed += self._clean(path)
                except OSError as error:
                    failure = failure or error
            if failure is not None:
                raise failure
        return freed

    def _clean(self, path: Path) -> int:
        if path.is_symlink() or not path.is_dir():
            return 0
        if path.name.startswith(layout.REMOVED_PREFIX):
            return delete(path)
        return self._discard(path) if path.name.startswith(layout.DRAFT_PREFIX) else 0

    def discard_draft(self, name: str) -> int:
        """Delete the draft of a snapshot, unless a living process holds it.

        Returns:
            The bytes that were freed, 0 where there is no such draft.

        Raises:
            UsageError: No snapshot may have the name.
            GpusnapError: The repository cannot be written to, or the draft is no folder.
        """
        path = self.path / f"{layout.DRAFT_PREFIX}{names.check(name)}"
        with storage("discard", path):
            return self._discard(path) if os.path.lexists(path) else 0

    def _discard(self, draft: Path) -> int:
        try:
            descriptor = hold_folder(draft, layout.DRAFT_LOCK)
        except BlockingIOError:
            return 0
        try:
            return retire(draft, self.path)
        finally:
            let_go(descriptor)

    def free_bytes(self) -> int:
        """How many bytes can still be written."""
        return free_bytes(self.path)
