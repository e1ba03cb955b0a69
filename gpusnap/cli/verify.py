"""``gpusnap verify``: read all of a snapshot and compare it with its manifest."""

from pathlib import Path

import click

from gpusnap.cli._format import count, duration, size
from gpusnap.cli._messages import Verified
from gpusnap.cli._options import json_option, repo_option, snapshot_argument
from gpusnap.cli._output import Output
from gpusnap.cli._watch import Watch, watched
from gpusnap.errors import EXIT_OK, IntegrityError
from gpusnap.events import Phase
from gpusnap.phases import Phases
from gpusnap.repository import Verification, locate, open_snapshot
from gpusnap.repository import verify as verify_files


@click.command()
@snapshot_argument
@repo_option
@json_option
def verify(snapshot: str, repo: Path | None, output: Output) -> int:
    """Compare every file of a snapshot with its checksums.

    SNAPSHOT is a path with a slash, a name in the repository, the beginning of one, or
    latest.
    """
    path = locate(snapshot, repo)
    _refuse_strangers(path)
    with watched(output) as watch, Phases(watch.plugins.emit).step(Phase.VERIFY) as progress:
        found = verify_files(path, progress)
    _report(path, found, watch, output)
    return EXIT_OK if found.intact else IntegrityError.exit_code


def _refuse_strangers(path: Path) -> None:
    """Let damage pass, which verifying is about, but no folder that never was a snapshot."""
    try:
        open_snapshot(path)
    except IntegrityError:
        return


def _report(path: Path, found: Verification, watch: Watch, output: Output) -> None:
    if output.json:
        result = Verified(
            path=path,
            intact=found.intact,
            files=found.files,
            bytes=found.bytes,
            findings=found.findings,
        )
        watch.summary("verify", result)
        return
    output.findings(found.findings)
    read = f"{count(found.files, 'file')}, {size(found.bytes)}, read in {duration(watch.took_us)}"
    wrong = count(len(found.findings), "fault")
    verdict = "is intact" if found.intact else f"is damaged: {wrong}"
    output.say(f"{path} {verdict} ({read})")
