"""Brings a job back from the newest of its run's snapshots that is intact."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from gpusnap.criu.namespace import END_SECONDS
from gpusnap.device_map import DeviceChoice
from gpusnap.ending import kill, wait_gone
from gpusnap.errors import GpusnapError, IntegrityError, NotFoundError
from gpusnap.events import Event, Phase, PhaseFinished, SnapshotRestored
from gpusnap.hookspecs import hookimpl
from gpusnap.jobs.outputs import Length, cut_back
from gpusnap.jobs.process import end_remains
from gpusnap.jobs.record import Run, boot_id, making_snapshot, read_run
from gpusnap.jobs.snapshots import Taken, note_intact, read_ledger, snapshot_path
from gpusnap.nested import init_of
from gpusnap.plugins import Plugins
from gpusnap.recovery import recover
from gpusnap.repository import Repository, Snapshot, open_snapshot, require_intact
from gpusnap.restore import RestoredTarget, RestoreOptions, plan_restore, run_restore
from gpusnap.target import identity, lives
from gpusnap.types import ProcessId

_REAPED_WITHIN_S = 5.0
_LOOK_S = 0.05


class Listener(Protocol):
    """Hears how a return goes."""

    def cleared(self) -> None:
        """Hear that nothing is left of the job."""

    def passed_over(self, taken: Taken, error: GpusnapError) -> None:
        """Hear of a snapshot that is damaged, of which the next older one takes the place."""

    def cutting(self, lengths: tuple[Length, ...]) -> None:
        """Hear of files that are about to be cut, where they have grown."""

    def restored(self, root: ProcessId, init: ProcessId | None) -> None:
        """Hear who the job is now, before it lives whatever becomes of gpusnap.

        Args:
            root: Its first process.
            init: The first process of its PID namespace, where it got one.
        """


def bring_back(
    folder: Path, plugins: Plugins, devices: DeviceChoice, listener: Listener
) -> RestoredTarget | None:
    """Restore the newest snapshot of a run that is intact, and end what is left of the job first.

    Args:
        folder: The run's.
        plugins: The plugins to use.
        devices: On which devices.
        listener: Hears how it goes, in the same thread.

    Returns:
        The job, which runs; None where the run has no intact snapshot.

    Raises:
        GpusnapError: An intact snapshot could not be restored, or the repository is not there.
    """
    run = read_run(folder)
    with making_snapshot(folder):
        _refuse_unreachable(run, folder)
        _end_namespace(run)
        end_remains(folder, ())
        listener.cleared()
        for taken, snapshot in _candidates(run, folder, listener):
            end_remains(folder, snapshot.manifest.target.processes)
            recover(snapshot.manifest.target.root.pid, plugins=plugins)
            returning = _Return(folder, taken, listener)
            plugins.register(returning, f"return-{run.name}")
            try:
                # All of it: a restore reads the memory only after the files were cut
                require_intact(snapshot, lambda _done, _total: None)
                note_intact(folder, taken.name, intact=True)
                return _restore(run, snapshot, devices, plugins)
            except IntegrityError as error:
                note_intact(folder, taken.name, intact=False)
                listener.passed_over(taken, error)
            finally:
                plugins.unregister(returning)
    return None


def _end_namespace(run: Run) -> None:
    """End what is left in the PID namespace of a job whose first process is gone."""
    if run.init is not None and run.boot_id == boot_id():
        kill(run.init)
        wait_gone((run.init,), END_SECONDS)


def _refuse_unreachable(run: Run, folder: Path) -> None:
    """A repository that is not mounted must not make the job begin anew, over its old files."""
    if not any(taken.complete for taken in read_ledger(folder).taken):
        return
    try:
        Repository.open(run.repository)
    except GpusnapError as error:
        msg = f"The snapshots of run {run.name} cannot be reached: {error.text}"
        cure = "Mount the file system that holds them; --fresh lets the run begin anew without them"
        raise GpusnapError(msg, cure=cure) from None


def _candidates(run: Run, folder: Path, listener: Listener) -> Iterator[tuple[Taken, Snapshot]]:
    for taken in reversed(read_ledger(folder).taken):
        path = snapshot_path(run, taken)
        if path.exists():  # else it was begun and never completed
            try:
                snapshot = open_snapshot(path)
            except (IntegrityError, NotFoundError) as error:
                listener.passed_over(taken, error)
                continue
            yield taken, snapshot


class _Return:
    """Cuts the job's files once a snapshot was checked and before CRIU compares them.

    It also tells who the job is before that lives by itself.
    """

    def __init__(self, folder: Path, taken: Taken, listener: Listener) -> None:
        self._folder = folder
        self._taken = taken
        self._listener = listener

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        """Do it."""
        match event:
            case PhaseFinished(phase=Phase.VERIFY):  # the last look before processes are made
                self._listener.cutting(self._taken.lengths)
                cut_back(self._folder, self._taken.lengths)
            case SnapshotRestored(pids=(pid, *_)) if (root := identity(pid)) is not None:
                self._listener.restored(root, init_of(pid))


def _restore(
    run: Run, snapshot: Snapshot, devices: DeviceChoice, plugins: Plugins
) -> RestoredTarget:
    asked = run.options
    options = RestoreOptions(
        backend=asked.backend,
        timeout_us=asked.timeout_us,
        thp=asked.thp,
        devices=devices,
        force=frozenset(asked.force),
    )
    if _pids_are_taken(snapshot, options, plugins):
        options = msgspec.structs.replace(options, new_pids=True)
    return run_restore(snapshot.path, options=options, plugins=plugins)


def _pids_are_taken(snapshot: Snapshot, options: RestoreOptions, plugins: Plugins) -> bool:
    """Whether others have the job's PIDs, as on another machine: it then gets its own."""
    deadline = time.monotonic() + _REAPED_WITHIN_S
    while True:
        plan = plan_restore(snapshot.path, options=options, plugins=plugins)
        pids = [each.pid for each in plan.findings if each.code == "pid-taken" and each.pid]
        # What is left of the job itself are zombies, which init reaps soon, and others may not
        if not pids or time.monotonic() > deadline or any(map(lives, pids)):
            return bool(pids)
        time.sleep(_LOOK_S)
