"""The steps of a restore that have an effect, and their way back, which leaves no process."""

import contextlib
import os

import msgspec

from gpusnap.criu import Namespace
from gpusnap.errors import GpusnapError
from gpusnap.events import Phase, SnapshotRestored
from gpusnap.journal import Entry, Journal, Task
from gpusnap.phases import Phases
from gpusnap.plugins import Backend, Plugins
from gpusnap.release import (
    confirm_checkpointed,
    kill_restored,
    now_ticks,
    program_path,
    release_devices,
)
from gpusnap.repository import PhaseTime
from gpusnap.restore_plan import PreparedRestore
from gpusnap.restore_session import RestoreSession
from gpusnap.target import alive, identity, myself
from gpusnap.types import DeviceMap, ProcessId


class RestoredTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A tree that runs again.

    Attributes:
        root_pid: The PID of its root, for ``ps``, ``suspend`` or ``checkpoint``.
        new_pids: For a tree in a PID namespace of its own, each PID that it has inside, which is
            that of the snapshot, with the one it has here; empty where all have their old PIDs.
        init_pid: The first process of that namespace, whose end is the end of the tree; it ends
            with the tree and with the root's exit code.
    """

    root_pid: int
    processes: tuple[ProcessId, ...]
    snapshot: str
    device_map: DeviceMap
    phases: tuple[PhaseTime, ...]
    new_pids: tuple[tuple[int, int], ...] = ()
    init_pid: int | None = None


class Restore:
    """One run of the state machine, from the first side effect on."""

    def __init__(
        self,
        prepared: PreparedRestore,
        phases: Phases,
        plugins: Plugins,
        namespace: Namespace | None,
    ) -> None:
        self._prepared = prepared
        self._namespace = namespace
        self._target = prepared.snapshot.manifest.target
        self._phases = phases
        self._emit = plugins.emit
        self._journal = Journal.begin(_entry(prepared, namespace))
        self._phases.journal = self._journal
        self._session = RestoreSession(prepared, namespace, phases, self._journal, self._emit)

    def run(self) -> RestoredTarget:
        """Make the processes, give them their devices, let them go.

        Raises:
            GpusnapError: A step failed; what had been started was killed.
        """
        try:
            self._unpack_images()
            self._session.run()
            self._restore_devices()
            processes = self._processes()
            self._let_go()
        except BaseException as error:
            self._clean_up(error)
            raise
        with contextlib.suppress(GpusnapError):  # a journal too many does no harm
            self._journal.finish()
        return self._restored(processes)

    def _unpack_images(self) -> None:
        """Make the images that lie in packs again, for CRIU's plugin to read."""
        if (unpacker := self._prepared.unpacker) is not None:
            with self._phases.step(Phase.UNPACK) as progress:
                unpacker.write_images(self._prepared.request.images, progress)

    def _restore_devices(self) -> None:
        backend = self._prepared.driven
        if backend is None:
            return
        claimed = self._session.pids.translate_all(self._prepared.claimed)
        with self._phases.step(Phase.RESTORE) as progress:
            # A driver that knows nothing of a process would leave it without its device memory
            confirm_checkpointed(backend, claimed)
            backend.restore(claimed, self._prepared.device_map, progress)
        with self._phases.step(Phase.UNLOCK):
            _unlock(backend, claimed)

    def _processes(self) -> tuple[ProcessId, ...]:
        root = self._session.pids.translate(self._target.root.pid)
        # The first process of a namespace keeps the exit code of a root that has ended already
        if identity(root) is None and self._namespace is None:
            msg = f"Process {root} ended right after its restore"
            raise GpusnapError(msg, cure="Look at the program's own output")
        found = (identity(pid) for pid in self._session.outside)
        return tuple(one for one in found if one is not None)

    def _let_go(self) -> None:
        """From here on the tree lives whatever becomes of gpusnap, and a signal comes too late."""
        if self._namespace is not None:
            # Not before: until it is let go it ends with gpusnap
            self._journal.update(resumed=True)
        self._emit(_announcement(self._prepared, self._session.outside))
        if self._namespace is not None:
            self._namespace.let_go()

    def _restored(self, processes: tuple[ProcessId, ...]) -> RestoredTarget:
        made = self._namespace is not None
        outside = self._session.outside
        return RestoredTarget(
            root_pid=self._session.pids.translate(self._target.root.pid),
            processes=processes,
            snapshot=str(self._prepared.snapshot.path),
            device_map=self._prepared.device_map,
            phases=self._phases.times,
            new_pids=tuple(zip(self._target.pids, outside, strict=True)) if made else (),
            init_pid=self._namespace.init.pid if self._namespace is not None else None,
        )

    def _clean_up(self, error: BaseException) -> None:
        """Leave no half-restored process; the snapshot stays as it was."""
        entry = self._journal.entry
        # Whoever has a PID then that nobody was seen to get is a stranger
        nothing_left = self._session.undone and not entry.made
        # Should gpusnap be killed now, what it was ending must not be taken for whole
        with contextlib.suppress(GpusnapError):
            self._journal.update(resumed=False)
        try:
            with self._phases.step(Phase.ROLLBACK):
                killed = () if nothing_left else kill_restored(entry)
            details = (f"{_count(killed)} killed",) if killed else ()
        except GpusnapError as failure:  # the journal keeps what has not ended
            self._journal.leave()
            details = (failure.text, *((failure.cure,) if failure.cure else ()))
        except BaseException:  # interrupted once more: gpusnap recover need not wait for our end
            self._journal.leave()
            raise
        else:
            with contextlib.suppress(GpusnapError):  # a journal too many does no harm
                self._journal.finish()
        if isinstance(error, GpusnapError):
            error.details += ("The snapshot is unchanged", *details)


def _entry(prepared: PreparedRestore, namespace: Namespace | None) -> Entry:
    started, criu = now_ticks(), prepared.criu
    saved = prepared.snapshot.manifest.target.processes
    programs = {program_path(each.executable) for each in saved if each.executable}
    to_come = tuple(ProcessId(process.pid, started) for process in saved)
    return Entry(
        task=Task.RESTORE,
        owner=myself(),
        processes=to_come if namespace is None else (namespace.init,),
        made=namespace is not None,
        claimed=prepared.claimed if namespace is None else (),
        backend=prepared.backend.name if prepared.backend else None,
        executables=(*sorted(programs), *map(os.path.realpath, (criu.path, criu.command[0]))),
        path=str(prepared.snapshot.path),
        work=str(prepared.request.work),
    )


def _unlock(backend: Backend, claimed: tuple[int, ...]) -> None:
    """Let the processes compute; one of them may be through before the driver has answered."""
    try:
        backend.unlock(claimed)
    except GpusnapError:
        found = map(identity, claimed)
        living = tuple(each.pid for each in found if each is not None and alive(each))
        if living == claimed:
            raise
        release_devices(backend, living)


def _announcement(prepared: PreparedRestore, pids: tuple[int, ...]) -> SnapshotRestored:
    snapshot = prepared.snapshot
    return SnapshotRestored(
        path=str(snapshot.path),
        id=snapshot.manifest.id,
        pids=pids,
        backend=prepared.backend.name if prepared.backend else None,
        bytes=snapshot.size,
    )


def _count(killed: tuple[int, ...]) -> str:
    if len(killed) == 1:
        return f"The half-restored process {killed[0]} was"
    return f"{len(killed)} half-restored processes were"
