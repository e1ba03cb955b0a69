"""``gpusnap verify``: read all of a snapshot and compare it with its manifest."""

from pathlib import Path

import click

from gpusnap.cli import _parameters
from gpusnap.cli._format import count, duration, size
from gpusnap.cli._messages import Verified
from gpusnap.cli._options import json_option, repo_option, snapshot_argument, workers_option
from gpusnap.cli._output import Output
from gpusnap.cli._watch import Watch, watched
from gpusnap.datapath import Subset
from gpusnap.errors import EXIT_OK, IntegrityError
from gpusnap.events import Phase
from gpusnap.phases import Phases
from gpusnap.repository import Verification, locate, open_snapshot
from gpusnap.repository import verify as verify_files


@click.command()
@snapshot_argument
@repo_option
@click.option(
    "--read-data-subset",
    "read_data_subset",
    metavar="SUBSET",
    callback=_parameters.subset,
    envvar="GPUSNAP_READ_DATA_SUBSET",
    show_envvar=True,
    help="Of the saved memory read only a share chosen at random, 10%, or the second of seven "
    "parts, 2/7; all else is read whole.",
)
@workers_option("Threads that read.")
@json_option
def verify(
    snapshot: str,
    repo: Path | None,
    read_data_subset: Subset | None,
    parallel_workers: int | None,
    output: Output,
) -> int:
    """Compare every file of a snapshot with its checksums.

    What is damaged is named: the file and, in saved memory, the place in it and the memory that
    was there.

    SNAPSHOT is a path with a slash, a name in the repository, the beginning of one, or
    latest.
    """
    path = locate(snapshot, repo)
    _refuse_strangers(path)
    with watched(output) as watch, Phases(watch.plugins.emit).step(Phase.VERIFY) as progress:
        found = verify_files(path, progress, workers=parallel_workers, subset=read_data_subset)
    _report(path, found, watch, output)
    return EXIT_OK if found.intact else IntegrityError.exit_code


def _refuse_strangers(path: Path) -> None:
    """Let damage pass, which verifying is about, but no folder that never was a snapshot."""
    try:
        open_snapshot(path)
    except IntegrityError:
        return


def _report(path: Path, found: Verification, watch: Watch, output: Output) -> None:
    took_us = max(1, watch.took_us)
    if output.json:
        result = Verified(
            path=path,
            intact=found.intact,
            files=found.files,
            bytes=found.bytes,
            bytes_total=found.total,
            bytes_per_second=found.bytes * 1_000_000 // took_us,
            findings=found.findings,
        )
        watch.summary("verify", result)
        return
    output.findings(found.findings)
    wrong = count(len(found.findings), "fault")
    part = "" if found.bytes >= found.total else f" of {size(found.total)}"
    intact = "is intact as far as it was read" if part else "is intact"
    verdict = intact if found.intact else f"is damaged: {wrong}"
    read = f"{count(found.files, 'file')}, {size(found.bytes)}{part}"
    rate = f"{size(found.bytes * 1_000_000 // took_us)}/s"
    output.say(f"{path} {verdict} ({read}, read in {duration(took_us)}, {rate})")
