"""``gpusnap watch``: the same as ``run``, for a job that runs already."""

from pathlib import Path

import click

from gpusnap.cli._job import job_options, name_option, supervise_job
from gpusnap.cli._options import pid_argument
from gpusnap.cli._output import Output


@click.command()
@pid_argument
@name_option
@job_options
def watch(pid: int, name: str | None, repo: Path | None, output: Output, **options: object) -> int:
    """Do for a running job what run does for its own.

    It is as if the tree below PID had been started by gpusnap run, but for its output, which
    stays where it is, and for its beginning, which only whoever started it can repeat. Ctrl-C and
    other signals end the watching alone. When the job has ended, gpusnap ends with its exit code
    where the kernel tells that (Linux 6.15).
    """
    return supervise_job(output, options, name=name, repo=repo, pid=pid)
