"""``gpusnap suspend``: take a living process off its devices."""

import click

from gpusnap.cli._format import duration, size
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
from gpusnap.suspension import Suspended
from gpusnap.suspension import suspend as suspend_target


@click.command()
@pid_argument
@backend_option
@lock_timeout_option
@thp_option
@force_option
@json_option
def suspend(
    pid: int,
    backend: str | None,
    lock_timeout_us: int,
    thp: bool,
    force: tuple[str, ...],
    output: Output,
) -> int:
    """Move a process tree's device state into host memory.

    The tree below PID stays alive; its devices are free until gpusnap resume PID.
    """
    with watched(output) as watch:
        suspended = suspend_target(
            pid,
            backend=backend,
            lock_timeout_us=lock_timeout_us,
            thp=thp,
            force=frozenset(force),
            plugins=watch.plugins,
        )
    if output.json:
        watch.summary("suspend", suspended)
    else:
        output.say(_sentence(pid, suspended, watch.took_us))
    return watch.exit_code


def _sentence(pid: int, suspended: Suspended, took_us: int) -> str:
    moved = sum(use.memory for use in suspended.image.uses)
    amount = f": {size(moved)} of device memory moved to host memory" if moved else ""
    return (
        f"Suspended process {pid}{amount} in {duration(took_us)}; gpusnap resume {pid} puts it back"
    )
