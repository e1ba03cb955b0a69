"""What is in a repository."""

from pathlib import Path

import msgspec

from gpusnap.repository.snapshot import Snapshot


class Damaged(msgspec.Struct, frozen=True):
    """A snapshot that cannot be opened.

    Attributes:
        path: Its folder.
        reason: Why, in a sentence.
    """

    path: Path
    reason: str

    @property
    def name(self) -> str:
        """Its name in the repository."""
        return self.path.name


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a repository.

    Attributes:
        snapshots: Those that can be opened, oldest first.
        damaged: Those that cannot, sorted by name.
    """

    snapshots: tuple[Snapshot, ...]
    damaged: tuple[Damaged, ...]
