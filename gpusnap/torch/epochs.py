"""A folder of snapshots, one an epoch: ``epoch_N.ckpt``."""

import re
from pathlib import Path

import msgspec

from gpusnap.errors import IntegrityError, NotFoundError
from gpusnap.inprocess.itself import Checkpointed
from gpusnap.repository import Damaged, Repository, Snapshot, open_snapshot

_NAME = re.compile(r"epoch_(0|[1-9][0-9]*)(\.new)?\.ckpt")


class Epochs(msgspec.Struct, frozen=True):
    """Where the snapshot of each epoch is.

    One that replaces another is made as ``epoch_N.new.ckpt``, so that at no instant there is none.
    """

    folder: Path

    def saved(self) -> tuple[int, ...]:
        """The epochs that have a snapshot, in ascending order."""
        names = (each.name for each in self.folder.iterdir()) if self.folder.is_dir() else ()
        found = filter(None, map(_NAME.fullmatch, names))
        return tuple(sorted({int(each[1]) for each in found}))

    def find(self, epoch: int) -> Path:
        """The snapshot of an epoch.

        Raises:
            NotFoundError: There is none; says which there are.
        """
        path = next(filter(Path.exists, (self._path(epoch), self._new(epoch))), None)
        if path is None:
            raise NotFoundError(
                f"Epoch {epoch} was not saved in {self.folder}",
                cure=f"Choose one of those that were: {self._listed() or 'there is none'}",
            )
        return path

    def place(self, epoch: int) -> Path:
        """Where to make the snapshot of an epoch."""
        new, path = self._new(epoch), self._path(epoch)
        if new.exists() and path.exists():
            self._remove(new)
        return new if path.exists() else path

    def settle(self, epoch: int, made: Checkpointed) -> Checkpointed:
        """Put a snapshot that was made where :meth:`place` said into its place."""
        path = self._path(epoch)
        if made.path == path:
            return made
        self._remove(path)
        made.path.rename(path)
        return msgspec.structs.replace(made, snapshot=path.name, path=path)

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch_{epoch}.ckpt"

    def _new(self, epoch: int) -> Path:
        return self.folder / f"epoch_{epoch}.new.ckpt"

    def _remove(self, path: Path) -> None:
        found: Snapshot | Damaged
        try:
            found = open_snapshot(path)
        except IntegrityError as error:
            found = Damaged(path, error.text)
        Repository.open(self.folder).remove(found)

    def _listed(self) -> str:
        return ", ".join(map(str, self.saved()))
