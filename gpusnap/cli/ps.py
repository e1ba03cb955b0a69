"""``gpusnap ps``: the processes that use devices."""

import click

from gpusnap.checks import processes
from gpusnap.cli._format import listed, size
from gpusnap.cli._messages import InterruptedTarget, ProcessList, SuspendedTarget
from gpusnap.cli._options import backend_option, json_option
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK, NotFoundError
from gpusnap.journal import Entry, entries
from gpusnap.target import alive, read_process

_COLUMNS = (">PID", "NAME", "STATE", ">MEMORY", "DEVICE")


@click.command()
@backend_option
@json_option
def ps(backend: str | None, output: Output) -> int:
    """List the processes that use devices.

    Those that gpusnap has suspended are listed too, and those it left interrupted when it was
    killed.
    """
    suspended, interrupted = _left()
    found = ProcessList(
        processes=processes(backend=backend),
        suspended=tuple(map(_suspended, suspended)),
        interrupted=tuple(map(_interrupted, interrupted)),
    )
    if output.json:
        output.document(found)
    else:
        _show(found, output)
    return EXIT_OK


def _left() -> tuple[list[Entry], list[Entry]]:
    """The living targets that a listing of device memory may no longer show.

    Those that are suspended, and those that a killed gpusnap left in the middle of a task.
    """
    found = [(entry, held) for entry, held in entries() if any(map(alive, entry.processes))]
    suspended = [each for each, held in found if (each.suspended if held else each.stays_suspended)]
    interrupted = [each for each, held in found if not held and not each.stays_suspended]
    return suspended, interrupted


def _suspended(entry: Entry) -> SuspendedTarget:
    return SuspendedTarget(
        pids=entry.claimed, names=tuple(map(_name, entry.claimed)), backend=entry.backend
    )


def _interrupted(entry: Entry) -> InterruptedTarget:
    pids = entry.claimed or tuple(sorted(entry.pids))
    return InterruptedTarget(
        task=entry.task, pids=pids, names=tuple(map(_name, pids)), backend=entry.backend
    )


def _name(pid: int) -> str:
    try:
        return read_process(pid).name
    except NotFoundError:
        return "-"


def _states(found: ProcessList) -> dict[int, tuple[str, str]]:
    """Name and state of every process that does not just run."""
    named: dict[str, tuple[SuspendedTarget | InterruptedTarget, ...]] = {
        "suspended": found.suspended,
        "interrupted": found.interrupted,
    }
    return {
        pid: (name, state)
        for state, targets in named.items()
        for each in targets
        for pid, name in zip(each.pids, each.names, strict=True)
    }


def _show(found: ProcessList, output: Output) -> None:
    states = _states(found)
    shown = {each.pid for each in found.processes}
    rows = [
        (
            str(each.pid),
            each.name or "-",
            states[each.pid][1] if each.pid in states else "running",
            size(each.memory),
            each.device_uuid,
        )
        for each in found.processes
    ]
    rows += [(str(pid), *states[pid], "-", "-") for pid in states if pid not in shown]
    if rows:
        output.table(_COLUMNS, rows)
    else:
        output.note("No process uses a device of a usable backend")
    for each in found.interrupted:
        output.note(f"A {each.task} of {listed(each.pids)} was interrupted: run gpusnap recover")
