"""``gpusnap list``: the snapshots of a repository."""

import shlex
from pathlib import Path

import click

from gpusnap.cli._format import duration, instant, size
from gpusnap.cli._messages import DamagedRow, Listing, SnapshotRow, snapshot_row
from gpusnap.cli._options import json_option, repo_option, tag_option
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK, EXIT_WARNINGS
from gpusnap.repository import Repository, default_repository

_COLUMNS = ("NAME", "CREATED", ">PID", "COMMAND", "BACKEND", ">SIZE", ">NEW", ">FROZEN", "TAGS")
_COMMAND_LENGTH = 40


@click.command("list")
@repo_option
@tag_option("List those with this tag only; given several times, those with any.")
@json_option
def list_snapshots(repo: Path | None, tag: tuple[str, ...], output: Output) -> int:
    """List the snapshots of a repository, oldest first.

    SIZE is what all files of a snapshot hold, NEW is without those that were its parent's.
    """
    listing = _read(repo, tag)
    if output.json:
        output.document(listing)
    else:
        _show(listing, tag, output)
    return EXIT_WARNINGS if listing.damaged else EXIT_OK


def _read(repo: Path | None, tags: tuple[str, ...]) -> Listing:
    folder = repo or default_repository()
    # Before its first snapshot the default repository does not exist, which is no mistake.
    if repo is None and not folder.exists():
        return Listing(repository=str(folder))
    found = Repository.open(folder).contents()
    return Listing(
        repository=str(folder),
        snapshots=tuple(
            snapshot_row(each)
            for each in found.snapshots
            if not tags or set(tags) & set(each.manifest.tags)
        ),
        damaged=tuple(
            DamagedRow(name=each.name, path=str(each.path), reason=each.reason)
            for each in found.damaged
        ),
    )


def _command(row: SnapshotRow) -> str:
    text = shlex.join(row.command)
    return text if len(text) <= _COMMAND_LENGTH else f"{text[: _COMMAND_LENGTH - 3]}..."


def _row(row: SnapshotRow) -> tuple[str, ...]:
    return (
        row.name,
        instant(row.created),
        str(row.root_pid),
        _command(row),
        row.backend or "-",
        size(row.bytes),
        size(row.stored_bytes),
        duration(row.frozen_us),
        ",".join(row.tags) or "-",
    )


def _show(listing: Listing, tags: tuple[str, ...], output: Output) -> None:
    if listing.snapshots:
        output.table(_COLUMNS, map(_row, listing.snapshots))
    else:
        tagged = f" with the tag {' or '.join(tags)}" if tags else ""
        output.note(f"No snapshots{tagged} in {listing.repository}")
    for each in listing.damaged:
        output.note(f"gpusnap: warning: {each.name} is damaged: {each.reason}")
