"""``gpusnap preempt``: lend a job's devices to an urgent command."""

import click

from gpusnap.cli._format import duration
from gpusnap.cli._options import (
    backend_option,
    force_option,
    json_option,
    lock_timeout_option,
    pid_argument,
    thp_option,
)
from gpusnap.cli._output import Output
from gpusnap.cli._watch import watched
from gpusnap.jobs.preempt import Preempted
from gpusnap.jobs.preempt import preempt as preempt_job

_STDERR = 2


@click.command()
@pid_argument
@click.option(
    "--for",
    "command",
    metavar="COMMAND",
    required=True,
    envvar="GPUSNAP_COMMAND",
    show_envvar=True,
    help="The command with its arguments, in quotes; it is run without a shell.",
)
@backend_option
@lock_timeout_option
@thp_option
@force_option
@json_option
def preempt(
    pid: int,
    command: str,
    backend: str | None,
    lock_timeout_us: int,
    thp: bool,
    force: tuple[str, ...],
    output: Output,
) -> int:
    """Suspend a job, run an urgent command, resume the job.

    The devices of the tree below PID are free for COMMAND. The tree is resumed however COMMAND
    ends, also after a signal, which COMMAND gets. The exit code is that of COMMAND. With --json
    its standard output goes to standard error.
    """
    with watched(output) as watch:
        preempted = preempt_job(
            pid,
            command,
            backend=backend,
            lock_timeout_us=lock_timeout_us,
            thp=thp,
            force=frozenset(force),
            stdout=_STDERR if output.json else None,
            plugins=watch.plugins,
        )
    if output.json:
        watch.summary("preempt", preempted)
    else:
        output.note(_sentence(pid, preempted, watch.record.frozen_us))
    return preempted.exit_code


def _sentence(pid: int, preempted: Preempted, frozen_us: int | None) -> str:
    ran = f"The command ended with exit code {preempted.exit_code} after "
    ran += duration(preempted.command_us)
    stood = f", which stood still for {duration(frozen_us)}" if frozen_us is not None else ""
    return f"{ran}; resumed process {pid}{stood}"
