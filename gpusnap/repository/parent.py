"""The earlier snapshot that an incremental one builds on."""

from contextlib import suppress
from pathlib import Path

from gpusnap.datapath import Parent, Saved
from gpusnap.errors import IntegrityError, NotFoundError, UsageError
from gpusnap.repository.digest import digest_file
from gpusnap.repository.draft import Draft
from gpusnap.repository.packs import INDEX_PATH
from gpusnap.repository.repository import Repository
from gpusnap.repository.snapshot import Snapshot
from gpusnap.repository.storage import printable, require_damage
from gpusnap.types import Target

_CURE = "Name another parent, or make the snapshot without one"


def newest_parent(folder: Path, target: Target) -> Snapshot | None:
    """The newest snapshot in a repository of a program that was started in the same way.

    Which one it is only decides how much need not be stored again: a chunk is found by its
    content, so that any parent is safe.

    Args:
        folder: The repository's, which need not exist.
        target: What is to be saved.
    """
    found: tuple[Snapshot, ...] = ()
    with suppress(NotFoundError):
        found = Repository.open(folder).snapshots()
    return next(filter(lambda each: _suits(each, target), reversed(found)), None)


def _suits(snapshot: Snapshot, target: Target) -> bool:
    memory, root = snapshot.manifest.memory, snapshot.manifest.target.root
    same = (root.executable, root.command) == (target.root.executable, target.root.command)
    return same and memory is not None and memory.identities


def open_parent(snapshot: Snapshot, draft: Draft | None = None) -> Parent:
    """Read what a parent holds; of its packs only the lengths are compared.

    Args:
        snapshot: The parent.
        draft: What builds on it; None to leave out whether its packs can be linked there.

    Raises:
        UsageError: It was made without identities, or its packs cannot be linked.
        IntegrityError: Its index is damaged, or a pack has another length.
        IncompatibleError: A newer gpusnap wrote it.
        PrivilegeError: It may not be read.
    """
    name = printable(snapshot.name)
    memory = snapshot.manifest.memory
    if memory is None or not memory.identities:
        text = f"Snapshot {name} cannot be a parent: it was not made with --incremental"
        raise UsageError(text, cure=_CURE)
    try:
        _check_index(snapshot)
        saved = Saved(snapshot.regions)
        saved.require_packs()
    except IntegrityError as error:
        raise IntegrityError(
            f"Snapshot {name} cannot be a parent: {error.text}", cure=_CURE
        ) from error
    fault = draft.link_fault(snapshot.path / INDEX_PATH) if draft else None
    if fault is not None:
        text = f"Snapshot {name} cannot be a parent, for its packs cannot be linked: {fault}"
        raise UsageError(text, cure=_CURE)
    return Parent(saved)


def _check_index(snapshot: Snapshot) -> None:
    path = snapshot.path / INDEX_PATH
    expected = next((file for file in snapshot.manifest.files if file.path == INDEX_PATH), None)
    in_parts = expected is not None and expected.in_parts
    try:
        found = digest_file(path, INDEX_PATH, lambda _count: None, in_parts=in_parts)
    except OSError as error:
        require_damage(error, path)
        raise IntegrityError(f"{printable(path)} cannot be read: {error.strerror}") from error
    if found != expected:
        raise IntegrityError(f"{printable(path)} is damaged")
