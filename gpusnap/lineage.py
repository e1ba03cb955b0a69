"""What an incremental checkpoint inherits: its parent, chosen, opened and held."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from gpusnap.datapath import Parent
from gpusnap.errors import GpusnapError, PrivilegeError
from gpusnap.repository import Draft, Snapshot, newest_parent, open_parent, resolve
from gpusnap.trust import check_owner
from gpusnap.types import Finding, Severity, Target


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Where a parent is looked for.

    Attributes:
        parent: Path, name or unique prefix of the snapshot that the user named, or None.
        repository: Where that name is looked up; None for the default one.
        folder: The repository of the new snapshot, where a parent is chosen if none was named.
    """

    parent: str | Path | None
    repository: str | Path | None
    folder: Path


class Inheritance(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot builds on; all is None where it stands alone.

    Attributes:
        parent: The snapshot.
        memory: Its memory.
        finding: Why the parent that was chosen cannot be used.
    """

    parent: Snapshot | None = None
    memory: Parent | None = None
    finding: Finding | None = None


@contextmanager
def inheritance(
    target: Target, search: Search | None, draft: Draft | None = None
) -> Iterator[Inheritance]:
    """Find the parent, which cannot be removed inside the block.

    Args:
        target: What is to be saved.
        search: Where to look; None for a snapshot that is not incremental.
        draft: The new snapshot; None to leave out whether it can have the parent's packs.

    Raises:
        GpusnapError: The parent that the user named cannot be used.
    """
    with ExitStack() as held:
        yield _inherit(target, search, draft, held) if search else Inheritance()


def _inherit(target: Target, search: Search, draft: Draft | None, held: ExitStack) -> Inheritance:
    if search.parent is not None:
        return _open(resolve(search.parent, search.repository), draft, held)
    parent = newest_parent(search.folder, target)
    if parent is None:
        return Inheritance()
    try:
        return _open(parent, draft, held)
    except GpusnapError as error:
        return Inheritance(finding=_unusable(error))


def _open(parent: Snapshot, draft: Draft | None, held: ExitStack) -> Inheritance:
    held.enter_context(parent.hold())
    _refuse_strangers(parent)
    return Inheritance(parent=parent, memory=open_parent(parent, draft))


def _refuse_strangers(parent: Snapshot) -> None:
    """What the parent holds runs when a snapshot that builds on it is restored."""
    for finding in check_owner(parent.path):
        raise PrivilegeError(
            f"Snapshot {parent.name} cannot be a parent: {finding.text} [{finding.code}]",
            cure="Name another parent; or, if you trust all who could have written it, take it "
            "over: chown -R, chmod -R go-w",
        )


def _unusable(error: GpusnapError) -> Finding:
    return Finding(
        code="parent-unusable",
        severity=Severity.WARNING,
        text=f"All memory is stored anew: {error.text}",
        cure="See to that snapshot (gpusnap verify), or name another one with --parent",
    )
