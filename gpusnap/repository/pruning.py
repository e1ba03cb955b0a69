"""What a pruning of a repository did."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from gpusnap.errors import GpusnapError, NotFoundError
from gpusnap.repository.contents import Damaged
from gpusnap.repository.retention import Group, Verdict
from gpusnap.repository.snapshot import Snapshot


class Removed(msgspec.Struct, frozen=True):
    """A snapshot that was removed, or in a dry run would be.

    Attributes:
        snapshot: Which one.
        bytes_freed: What that freed on the disk; 0 in a dry run.
    """

    snapshot: Snapshot
    bytes_freed: int = 0


class Refused(msgspec.Struct, frozen=True):
    """What could not be removed.

    Attributes:
        path: The snapshot, or the repository with what interrupted operations left in it.
        error: Why.
    """

    path: Path
    error: GpusnapError


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What a pruning did, or in a dry run would do.

    Attributes:
        groups: What was decided of each snapshot, and why.
        removed: Snapshots that are gone; those that others removed meanwhile are not among them.
        refused: What should have been removed and could not be, such as snapshots in use.
        damaged: Snapshots that cannot be opened, which are never removed.
        bytes_freed: All that was freed, with what interrupted operations had left.
    """

    groups: tuple[Group, ...]
    removed: tuple[Removed, ...]
    refused: tuple[Refused, ...] = ()
    damaged: tuple[Damaged, ...] = ()
    bytes_freed: int = 0

    @property
    def kept(self) -> tuple[Verdict, ...]:
        """What the rules keep."""
        return tuple(each for group in self.groups for each in group.verdicts if each.kept)


def to_remove(groups: tuple[Group, ...]) -> tuple[Snapshot, ...]:
    """The snapshots that no rule keeps."""
    verdicts = (verdict for group in groups for verdict in group.verdicts)
    return tuple(verdict.snapshot for verdict in verdicts if not verdict.kept)


def remove_each(
    snapshots: tuple[Snapshot, ...], remove: Callable[[Snapshot], int]
) -> tuple[tuple[Removed, ...], tuple[Refused, ...]]:
    """Remove snapshots one by one; what cannot be removed does not keep the rest."""
    removed: list[Removed] = []
    refused: list[Refused] = []
    for snapshot in snapshots:
        try:
            removed.append(Removed(snapshot, remove(snapshot)))
        except NotFoundError:
            continue  # somebody else was faster
        except GpusnapError as error:
            refused.append(Refused(snapshot.path, error))
    return tuple(removed), tuple(refused)
