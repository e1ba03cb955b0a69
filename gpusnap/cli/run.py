"""``gpusnap run``: start a program as a job that survives."""

from pathlib import Path

import click

from gpusnap.cli._job import (
    fresh_option,
    job_options,
    name_option,
    steps_option,
    supervise_job,
)
from gpusnap.cli._output import Output


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", metavar="[--] [COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@name_option
@fresh_option
@steps_option
@job_options
def run(
    command: tuple[str, ...],
    name: str | None,
    fresh: bool,
    repo: Path | None,
    output: Output,
    **options: object,
) -> int:
    """Run a program that is saved, and comes back after a crash.

    The job has gpusnap's terminal, gets its signals, and its exit code is gpusnap's. What happens
    is told on standard error. A snapshot that fails is a warning, and the job runs on.

    With the --name of a run that exists, it goes on: the job that is alive is followed, one that
    is gone is brought back, and of one that has ended the exit code is told. COMMAND may be left
    out then, and options that are not given stay as they were.
    """
    return supervise_job(output, options, name=name, repo=repo, command=command, fresh=fresh)
