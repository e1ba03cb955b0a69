"""Carries out what a program asks for: by its helper, or by the gpusnap that supervises its run."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpusnap.checkpoint import run_checkpoint
from gpusnap.errors import BusyError, GpusnapError, TargetError
from gpusnap.inprocess.answers import saved
from gpusnap.inprocess.messages import Request
from gpusnap.inprocess.outside import POLL_S
from gpusnap.jobs.record import read_run
from gpusnap.jobs.snapshots import take
from gpusnap.journal import Task, entries
from gpusnap.mailbox import Answer, Failure
from gpusnap.plan import CheckpointOptions
from gpusnap.plugins import Plugins
from gpusnap.repository import Snapshot, require_intact
from gpusnap.target import find_target


def answered(save: Callable[[], Snapshot]) -> Answer:
    """What a program is told of a checkpoint of it.

    Args:
        save: Makes it; whatever it raises is told, for the program waits.
    """
    try:
        return saved(save())
    except Exception as error:  # noqa: BLE001 - whatever it is, the program waits
        return failed(error)


def failed(error: Exception) -> Answer:
    """What a program is told of an error."""
    return Answer(outcome="failed", failure=Failure.of(_known(error)))


def _known(error: Exception) -> GpusnapError:
    if isinstance(error, GpusnapError):
        return error
    return GpusnapError(f"gpusnap failed unexpectedly: {type(error).__name__}: {error}")


def carry_out(request: Request, pid: int, plugins: Plugins | None = None) -> Snapshot:
    """Save a program as it asks.

    Args:
        request: What it asks for.
        pid: Its PID here.
        plugins: The plugins to use; the installed ones by default.

    Raises:
        GpusnapError: It could not be saved; the program runs on.
    """
    options = msgspec.structs.replace(request.options, mailbox=request.mailbox)
    if request.run is None:
        snapshot = _checkpoint_when_free(request, pid, options, plugins)
    else:
        folder = Path(request.run)
        snapshot = take(
            folder,
            _root(folder, pid),
            tags=options.tags,
            plugins=plugins,
            leave_running=options.leave_running,
            timeout_us=options.timeout_us,
            mailbox=options.mailbox,
            first=options.first,
        )
    if request.read_back:
        require_intact(snapshot, lambda *_: None)
    return snapshot


def _checkpoint_when_free(
    request: Request, pid: int, options: CheckpointOptions, plugins: Plugins | None
) -> Snapshot:
    """Let a checkpoint of the program from outside end, such as the one of a run's interval."""
    path, repository, refused = request.output_path, request.repository, False
    while True:
        try:
            return run_checkpoint(
                pid, path, repository=repository, options=options, plugins=plugins
            )
        except BusyError:
            held = _is_being_saved(pid)
            if refused and not held:
                raise
            refused = not held  # the other may have ended between the refusal and the look
            time.sleep(POLL_S)


def _is_being_saved(pid: int) -> bool:
    return any(
        held and entry.task is Task.CHECKPOINT and pid in entry.pids for entry, held in entries()
    )


def _root(folder: Path, pid: int) -> int:
    """The root of a run's job, of which the program may be a part alone.

    Raises:
        TargetError: It is none.
    """
    root = read_run(folder).root
    if root is None or pid not in find_target(root.pid).pids:
        raise TargetError(
            f"Process {pid} is no process of the run {folder.name}, as its GPUSNAP_RUN says",
            cure="Unset GPUSNAP_RUN where the program is started",
        )
    return root.pid
