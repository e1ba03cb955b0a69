"""``gpusnap ps``: the processes that use devices."""

import click

from gpusnap.checks import processes
from gpusnap.cli._format import size
from gpusnap.cli._messages import ProcessList, SuspendedTarget
from gpusnap.cli._options import backend_option, json_option
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK
from gpusnap.journal import entries
from gpusnap.target import alive

_COLUMNS = (">PID", "NAME", "STATE", ">MEMORY", "DEVICE")


@click.command()
@backend_option
@json_option
def ps(backend: str | None, output: Output) -> int:
    """List the processes that use devices.

    Those that gpusnap has suspended are listed too.
    """
    found = ProcessList(processes=processes(backend=backend), suspended=_suspended())
    if output.json:
        output.document(found)
    else:
        _show(found, output)
    return EXIT_OK


def _suspended() -> tuple[SuspendedTarget, ...]:
    """The targets a listing of device memory no longer shows."""
    return tuple(
        SuspendedTarget(pids=entry.claimed, backend=entry.backend)
        for entry, _held in entries()
        if entry.suspended and any(map(alive, entry.processes))
    )


def _show(found: ProcessList, output: Output) -> None:
    suspended = {pid: each for each in found.suspended for pid in each.pids}
    rows = [
        (
            str(each.pid),
            each.name or "-",
            "suspended" if each.pid in suspended else "running",
            size(each.memory),
            each.device_uuid,
        )
        for each in found.processes
    ]
    shown = {each.pid for each in found.processes}
    rows += [(str(pid), "-", "suspended", "-", "-") for pid in suspended if pid not in shown]
    if rows:
        output.table(_COLUMNS, rows)
    else:
        output.note("No process uses a device of a usable backend")
