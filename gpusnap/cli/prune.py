"""``gpusnap prune``: remove the snapshots that no rule keeps."""

from collections.abc import Iterator
from pathlib import Path

import click

from gpusnap.cli._format import count, instant, listed, size
from gpusnap.cli._messages import (
    DamagedRow,
    KeptRow,
    Pruning,
    RefusedRow,
    RemovedRow,
    snapshot_row,
)
from gpusnap.cli._options import (
    PREFIX,
    dry_run_option,
    json_option,
    keep,
    repo_option,
    tag_option,
)
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK, EXIT_WARNINGS
from gpusnap.repository import (
    Age,
    Group,
    Grouping,
    Pruned,
    Refused,
    Repository,
    RetentionPolicy,
    Verdict,
    default_repository,
)

_COLUMNS = ("NAME", "CREATED", "TAGS", "ACTION", "REASONS")


def _age(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Age | None:
    return None if value is None else Age.parse(value)


@click.command()
@keep("last", "Keep the N newest.")
@keep("hourly", "Keep the newest of each of the last N hours that have one.")
@keep("daily", "Keep the newest of each of the last N days that have one.")
@keep("weekly", "Keep the newest of each of the last N weeks that have one.")
@keep("monthly", "Keep the newest of each of the last N months that have one.")
@click.option(
    "--keep-within",
    metavar="AGE",
    callback=_age,
    envvar=f"{PREFIX}_KEEP_WITHIN",
    show_envvar=True,
    help="Keep all that are so much older than the newest at most, such as 2h, 3d12h or 1y5m;"
    " m is months.",
)
@tag_option("Keep all with this tag; may be given several times.", "--keep-tag")
@click.option(
    "--group-by",
    type=click.Choice([each.value for each in Grouping]),
    default=Grouping.TARGET.value,
    envvar=f"{PREFIX}_GROUP_BY",
    show_envvar=True,
    show_default=True,
    help="Apply the rules to the snapshots of each target, which is a host and a command line,"
    " or to all at once.",
)
@repo_option
@dry_run_option
@json_option
def prune(
    keep_last: int,
    keep_hourly: int,
    keep_daily: int,
    keep_weekly: int,
    keep_monthly: int,
    keep_within: Age | None,
    keep_tag: tuple[str, ...],
    group_by: str,
    repo: Path | None,
    dry_run: bool,
    output: Output,
) -> int:
    """Remove the snapshots that no rule keeps.

    What any of the --keep options wants is kept, and at least one is needed. Where they would keep
    nothing of a target, as after a mistyped tag, nothing at all is removed. Hours, days, weeks
    and months are those of the local time zone. Damaged snapshots and those in use stay. What
    interrupted checkpoints left is removed too.
    """
    policy = RetentionPolicy(
        keep_last=keep_last,
        keep_hourly=keep_hourly,
        keep_daily=keep_daily,
        keep_weekly=keep_weekly,
        keep_monthly=keep_monthly,
        keep_within=keep_within,
        keep_tags=keep_tag,
        group_by=Grouping(group_by),
    )
    repository = Repository.open(repo or default_repository())
    pruned = repository.prune(policy, dry_run=dry_run)
    if output.json:
        output.document(_document(repository, pruned, dry_run=dry_run))
    else:
        _show(pruned, output, dry_run=dry_run)
    _raise_first(pruned.refused)
    return EXIT_WARNINGS if pruned.damaged else EXIT_OK


def _document(repository: Repository, pruned: Pruned, *, dry_run: bool) -> Pruning:
    return Pruning(
        repository=str(repository.path),
        dry_run=dry_run,
        kept=tuple(
            KeptRow(snapshot=snapshot_row(each.snapshot), reasons=each.reasons)
            for each in pruned.kept
        ),
        removed=tuple(
            RemovedRow(snapshot=snapshot_row(each.snapshot), bytes_freed=each.bytes_freed)
            for each in pruned.removed
        ),
        refused=tuple(
            RefusedRow(path=str(each.path), reason=each.error.text) for each in pruned.refused
        ),
        damaged=tuple(
            DamagedRow(name=each.name, path=str(each.path), reason=each.reason)
            for each in pruned.damaged
        ),
        bytes_freed=pruned.bytes_freed,
    )


def _show(pruned: Pruned, output: Output, *, dry_run: bool) -> None:
    actions = {each.snapshot.path: "remove" for each in pruned.removed}
    actions |= {each.path: "refused" for each in pruned.refused}
    for group in pruned.groups:
        output.say(group.label)
        output.table(_COLUMNS, _rows(group, actions))
    for each in pruned.damaged:
        output.note(f"gpusnap: warning: {each.name} is damaged and was kept: {each.reason}")
    removed = count(len(pruned.removed), "snapshot")
    kept = len(pruned.kept)
    if dry_run:
        output.say(f"Would keep {kept} and remove {removed}")
    else:
        output.say(f"Kept {kept}, removed {removed}: {size(pruned.bytes_freed)} freed")


def _rows(group: Group, actions: dict[Path, str]) -> Iterator[tuple[str, ...]]:
    for verdict in group.verdicts:
        snapshot = verdict.snapshot
        yield (
            snapshot.name,
            instant(snapshot.manifest.created),
            ",".join(snapshot.manifest.tags) or "-",
            _action(verdict, actions),
            listed(verdict.reasons),
        )


def _action(verdict: Verdict, actions: dict[Path, str]) -> str:
    if verdict.kept:
        return "keep"
    # Neither removed nor refused: another process has removed it meanwhile.
    return actions.get(verdict.snapshot.path, "gone")


def _raise_first(refused: tuple[Refused, ...]) -> None:
    if not refused:
        return
    first, *others = (each.error for each in refused)
    first.details += tuple(error.text for error in others)
    raise first
