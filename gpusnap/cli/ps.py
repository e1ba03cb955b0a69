"""``gpusnap ps``: the processes that use devices."""

import click

from gpusnap.checks import processes
from gpusnap.cli._format import size
from gpusnap.cli._messages import ProcessList, SuspendedTarget
from gpusnap.cli._options import backend_option, json_option
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK, NotFoundError
from gpusnap.journal import entries
from gpusnap.target import alive, read_process

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
        SuspendedTarget(
            pids=entry.claimed, names=tuple(map(_name, entry.claimed)), backend=entry.backend
        )
        for entry, _held in entries()
        if entry.suspended and any(map(alive, entry.processes))
    )


def _name(pid: int) -> str:
    try:
        return read_process(pid).name
    except NotFoundError:
        return "-"


def _show(found: ProcessList, output: Output) -> None:
    suspended = {
        pid: name
        for each in found.suspended
        for pid, name in zip(each.pids, each.names, strict=True)
    }
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
    rows += [
        (str(pid), name, "suspended", "-", "-")
        for pid, name in suspended.items()
        if pid not in shown
    ]
    if rows:
        output.table(_COLUMNS, rows)
    else:
        output.note("No process uses a device of a usable backend")
