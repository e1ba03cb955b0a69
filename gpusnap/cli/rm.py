"""``gpusnap rm``: remove snapshots."""

from contextlib import suppress
from pathlib import Path

import click

from gpusnap.cli import _parameters
from gpusnap.cli._format import size
from gpusnap.cli._messages import Removal, Removals
from gpusnap.cli._options import json_option, repo_option
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK, GpusnapError, IntegrityError, NotFoundError
from gpusnap.repository import Damaged, Repository, Snapshot, locate, open_snapshot


@click.command()
@click.argument(
    "snapshots", metavar="SNAPSHOT...", nargs=-1, required=True, callback=_parameters.names
)
@repo_option
@json_option
def rm(snapshots: tuple[str, ...], repo: Path | None, output: Output) -> int:
    """Remove snapshots.

    If one of those named does not exist, none is removed.

    SNAPSHOT is a path with a slash, a name in the repository, the beginning of one, or
    latest. A damaged snapshot can be removed too.
    """
    removed = tuple(map(_remove, _find_all(snapshots, repo)))
    if output.json:
        output.document(Removals(removed=removed))
    else:
        for each in removed:
            output.say(f"Removed {each.path}: {size(each.bytes_freed)} freed")
    return EXIT_OK


def _open(path: Path) -> Snapshot | Damaged:
    try:
        return open_snapshot(path)
    except IntegrityError as error:
        return Damaged(path, error.text)


def _find_all(specs: tuple[str, ...], repo: Path | None) -> tuple[Snapshot | Damaged, ...]:
    found: dict[Path, Snapshot | Damaged] = {}
    missing: list[NotFoundError] = []
    for spec in specs:
        try:
            path = locate(spec, repo)
            found[path.absolute()] = _open(path)
        except NotFoundError as error:
            missing.append(error)
    if missing:
        raise _none_removed(missing)
    return tuple(found.values())


def _none_removed(missing: list[NotFoundError]) -> GpusnapError:
    first, *others = missing
    return NotFoundError(
        f"{first.text}; nothing was removed",
        cure=first.cure,
        details=[error.text for error in others],
    )


def _remove(snapshot: Snapshot | Damaged) -> Removal:
    repository = Repository.open(snapshot.path.parent)
    freed = repository.remove(snapshot)
    # What crashes left there goes too; if it cannot, the snapshot is removed all the same.
    with suppress(GpusnapError):
        repository.clean()
    return Removal(path=str(snapshot.path), bytes_freed=freed)
