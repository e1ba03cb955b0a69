"""``gpusnap recover``: put right what a killed gpusnap left."""

import click

from gpusnap.cli._format import listed
from gpusnap.cli._messages import Recovery, RecoveryRow
from gpusnap.cli._options import duration, json_option, optional_pid_argument
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK, GpusnapError
from gpusnap.recovery import recover as recover_targets


@click.command()
@optional_pid_argument
@duration("--timeout", "timeout_us", "10m", "How long leftovers of CRIU may take to end.")
@json_option
def recover(pid: int | None, timeout_us: int, output: Output) -> int:
    """Put right what interrupted operations left.

    That is done for all targets, or for the one with PID. The target of an interrupted
    checkpoint or preemption runs on; a half-restored one is ended; a suspended one stays
    suspended.
    """
    found = recover_targets(pid, timeout_us=timeout_us)
    rows = tuple(
        RecoveryRow(task=each.task, pids=each.pids, outcome=each.outcome, failed=each.failed)
        for each in found
    )
    if output.json:
        output.document(Recovery(recovered=rows))
    else:
        _show(rows, output)
    failed = any(row.failed for row in rows)
    return GpusnapError.exit_code if failed else EXIT_OK


def _show(rows: tuple[RecoveryRow, ...], output: Output) -> None:
    for row in rows:
        state = "not recovered" if row.failed else "recovered"
        subject = f"{row.task or 'operation'} of {listed(row.pids)}" if row.pids else "leftover"
        output.say(f"{subject} {state}: {row.outcome}")
    if not rows:
        output.say("Nothing is left of an interrupted operation")
