"""Finds out what a command line asks for: a new run, one that goes on, one that has ended."""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from gpusnap.errors import NotFoundError, UsageError
from gpusnap.folders import default_repository
from gpusnap.jobs.process import marked, topmost
from gpusnap.jobs.record import (
    Run,
    RunOptions,
    RunState,
    boot_id,
    read_run,
    run_folder,
    runs_directory,
    write_run,
    writing,
)
from gpusnap.jobs.snapshots import checkpoint_options, forget_snapshots, newest, retention
from gpusnap.recovery import recover
from gpusnap.repository.names import generated
from gpusnap.target import alive, find_target
from gpusnap.types import ProcessId


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the user typed.

    Attributes:
        name: Of the run; None has one made.
        command: What to run; empty for a run that exists, or with ``pid``.
        pid: A job that runs already.
        repository: For the snapshots of a new run; None for the default one.
        options: Fields of :class:`gpusnap.jobs.record.RunOptions` that were typed. A run that
            goes on without its command keeps the others as they are.
        fresh: Whether a run that exists begins anew.
    """

    name: str | None = None
    command: tuple[str, ...] = ()
    pid: int | None = None
    repository: Path | None = None
    options: Mapping[str, object] = {}
    fresh: bool = False


class Beginning(StrEnum):
    """How a supervision begins."""

    START = "start"
    """Start the command."""
    ADOPT = "adopt"
    """The job runs."""
    RETURN = "return"
    """The job is gone: bring it back from a snapshot, or start it anew."""
    OVER = "over"
    """The job has ended."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A run and what is to become of it."""

    folder: Path
    run: Run
    beginning: Beginning


def name_of(request: Request) -> str:
    """The name that a run has, or gets; with a new one its folder is made.

    Raises:
        UsageError: It can be none, or there is nothing to name it after.
        NotFoundError: No process has the PID.
        GpusnapError: The folder cannot be made.
    """
    if request.name is not None:
        return run_folder(request.name).name
    if request.pid is not None:
        word = find_target(request.pid).root.name
    elif request.command:
        word = Path(request.command[0]).name
    else:
        raise UsageError(
            "There is no command to run", cure="Put it after --, or name a run with --name"
        )
    word = word.encode("ascii", "ignore").decode().lstrip("._-") or "run"
    with writing(runs_directory()):
        runs_directory().mkdir(mode=0o700, parents=True, exist_ok=True)
        return next(name for name in generated(word[:40]) if _reserved(run_folder(name)))


def _reserved(folder: Path) -> bool:
    """Make a folder, which two gpusnaps that start in the same second cannot both do."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def open_run(request: Request, folder: Path) -> Opened:
    """Look at the run that a request means; makes a new one, and changes no other.

    Args:
        request: What the user typed.
        folder: The run's, which this gpusnap supervises.

    Raises:
        NotFoundError: There is no such run, and no command to begin one with.
        UsageError: The run is of another command, or an option can never be right.
        GpusnapError: The run folder cannot be used.
    """
    try:
        known = read_run(folder)
    except NotFoundError:
        known = None
    if known is None or request.fresh:
        return _begin(request, folder, known)
    if request.pid is None and request.command and request.command != known.command:
        raise UsageError(
            f"The run {folder.name} is of another command",
            cure="Choose another --name, or let it begin anew with --fresh",
        )
    _refuse_other_repository(request, known)
    base = RunOptions() if request.command or request.pid is not None else known.options
    run = msgspec.structs.replace(known, options=_options(base, request.options))
    if request.pid is not None:
        root = living(known, folder)
        if root is not None and root.pid != request.pid:
            raise _alive(known)
        return _watch(request.pid, folder, run if root is not None else _reused(request.pid, run))
    return Opened(folder=folder, run=run, beginning=_beginning(run, folder))


def _refuse_other_repository(request: Request, run: Run) -> None:
    asked = request.repository
    if asked is not None and str(asked.absolute()) != run.repository:
        raise UsageError(
            f"The snapshots of run {run.name} are in {run.repository}",
            cure="Leave --repo out, or choose another --name",
        )


def _reused(pid: int, run: Run) -> Run:
    """An old run as that of a job that runs; a crash must not bring another program back."""
    snapshot = newest(run_folder(run.name), run)
    if snapshot is None:
        return msgspec.structs.replace(run, command=())
    if snapshot.manifest.target.root.command != find_target(pid).root.command:
        msg = f"The snapshots of run {run.name} are of another program than process {pid}"
        raise UsageError(msg, cure="Choose another --name")
    return run


def _alive(run: Run) -> UsageError:
    return UsageError(
        f"The job of run {run.name} is alive",
        cure="End it or choose another --name; gpusnap run --name goes on with it",
    )


def _options(base: RunOptions, changes: Mapping[str, object]) -> RunOptions:
    return msgspec.structs.replace(base, **changes)


def _begin(request: Request, folder: Path, known: Run | None) -> Opened:
    command = request.command or (known.command if known is not None else ())
    if not command and request.pid is None:
        raise NotFoundError(
            f"There is no run {folder.name}", cure="Give the command to run, after --"
        )
    run = Run(
        name=folder.name,
        command=command,
        directory=os.getcwd(),  # noqa: PTH109 - as text
        repository=str((request.repository or default_repository()).absolute()),
        options=_options(RunOptions(), request.options),
        boot_id=boot_id(),
    )
    retention(run.options)
    checkpoint_options(run, incremental=run.options.incremental is not False)
    if known is not None and living(known, folder) is not None:
        raise _alive(known)
    root = find_target(request.pid).root.id if request.pid is not None else None
    run = msgspec.structs.replace(run, root=root)
    # In this order: killed between them, gpusnap must not go on with another command's snapshots
    forget_snapshots(folder)
    write_run(folder, run)
    beginning = Beginning.START if root is None else Beginning.ADOPT
    return Opened(folder=folder, run=run, beginning=beginning)


def _watch(pid: int, folder: Path, run: Run) -> Opened:
    target = find_target(pid)
    run = msgspec.structs.replace(
        run,
        root=target.root.id,
        init=run.init if run.root == target.root.id else None,
        boot_id=boot_id(),
        state=RunState.RUNNING,
        exit_code=None,
    )
    write_run(folder, run)
    return Opened(folder=folder, run=run, beginning=Beginning.ADOPT)


def _beginning(run: Run, folder: Path) -> Beginning:
    if run.state is RunState.ENDED:
        return Beginning.OVER
    recover()
    return Beginning.RETURN if living(run, folder) is None else Beginning.ADOPT


def living(run: Run, folder: Path) -> ProcessId | None:
    """The first process of a job that runs; None where it has ended."""
    if run.root is not None:
        return run.root if run.boot_id == boot_id() and alive(run.root) else None
    # gpusnap was killed before it could write down what it had started or restored
    return topmost(marked(folder))
