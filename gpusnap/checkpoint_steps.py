"""The steps of a checkpoint that have an effect, and their way back to a target that runs."""

import contextlib
from collections.abc import Sequence
from importlib.metadata import version

import msgspec

from gpusnap.datapath import Span
from gpusnap.dump_session import DumpSession, Moments
from gpusnap.ending import wait_gone
from gpusnap.errors import CriuError, GpusnapError, TargetError
from gpusnap.events import Phase, SnapshotPublished
from gpusnap.host import read_host
from gpusnap.journal import Entry, Journal, Task
from gpusnap.lineage import Inheritance
from gpusnap.links import save_links
from gpusnap.memory_copy import MemoryCopy
from gpusnap.nested import as_inside, outside_map
from gpusnap.phases import Phases
from gpusnap.pids import SAME
from gpusnap.plan import Prepared
from gpusnap.plugins import Plugins
from gpusnap.release import (
    SAME_DEVICES,
    confirm_checkpointed,
    release_devices,
    roll_back,
)
from gpusnap.repository import (
    Draft,
    FileDigest,
    Manifest,
    SavedLink,
    Snapshot,
    new_id,
    timestamp,
    version_for,
)
from gpusnap.scrub import Leftover, drop_leftovers, find_leftovers
from gpusnap.target import find_target, myself, same
from gpusnap.thp import huge_pages
from gpusnap.types import DeviceImage, Target

_DEATH_S = 60.0
"""How long a killed process may take to give its memory back."""


class Checkpoint:
    """One run of the state machine, from the first side effect on."""

    def __init__(
        self,
        prepared: Prepared,
        draft: Draft,
        inherited: Inheritance,
        phases: Phases,
        plugins: Plugins,
    ) -> None:
        self._prepared = prepared
        self._options = prepared.options
        self._draft = draft
        self._inherited = inherited
        self._phases = phases
        self._emit = plugins.emit
        self._target = prepared.target
        self._pids = prepared.claimed.pids
        self._outside = SAME
        self._image: DeviceImage | None = None
        self._links: tuple[SavedLink, ...] = ()
        self._snapshot: Snapshot | None = None
        self._dump = DumpSession(prepared, draft, phases, plugins.emit)
        self._copy = MemoryCopy(prepared, draft, inherited.memory, phases)
        self._journal = Journal.begin(_entry(prepared, draft))
        phases.journal = self._journal

    def run(self) -> Snapshot:
        """Save the target, and let it run on or see it gone.

        Raises:
            GpusnapError: A step failed; the target runs on unless the text says otherwise.
        """
        try:
            self._freeze_devices()
            self._dump_target()
            if self._options.leave_running:
                self._let_go()
            else:
                self._see_it_gone()
            snapshot = self._snapshot or self._publish()
            self._phases.thaw(self._target.pids)
        except BaseException as error:
            self._roll_back(error)
            raise
        with contextlib.suppress(GpusnapError):  # a journal too many does no harm
            self._journal.finish()
        return snapshot

    def _dump_target(self) -> None:
        copy = self._copy
        moments = Moments(copy.begin_devices, self._begin_copy, self._take, copy.start_over)
        try:
            self._dump.run(self._image, self._journal, moments)
        except CriuError:
            copy.require_room()
            raise

    def _freeze_devices(self) -> None:
        driven = self._prepared.driven
        if driven is not None:
            with self._phases.step(Phase.LOCK):
                self._phases.freeze(self._target.pids)
                driven.lock(self._pids, self._options.lock_timeout_us)
        # What is inherited can be told only while the device state is in place.
        leftovers = self._find_leftovers()
        if driven is not None:
            filling = huge_pages(self._emit, wanted=self._options.thp)
            reserving = self._copy.reserving()
            with self._phases.step(Phase.CHECKPOINT) as progress, filling, reserving:
                self._image = driven.checkpoint(self._pids, progress)
                # CRIU would dump one whose device memory is elsewhere, without it
                confirm_checkpointed(driven, self._pids)
        if leftovers:
            with self._phases.step(Phase.SCRUB):
                drop_leftovers(leftovers)

    def _find_leftovers(self) -> tuple[Leftover, ...]:
        """What forked children inherited of the device."""
        claim = self._prepared.claimed.claim
        return find_leftovers(find_target(self._target.root.pid), claim) if claim else ()

    def _begin_copy(self, hidden: Sequence[Span]) -> None:
        # Only now do all processes stand still: some may have been forked since preflight.
        self._target = _found_again(self._target)
        self._outside = outside_map(self._target.root.pid)
        self._copy.begin(hidden, self._target, self._outside)

    def _take(self) -> None:
        """Take from the target what only one that stands still can give."""
        if self._prepared.needs.options.link_remap:
            self._links = save_links(self._target, self._draft.images)
        self._copy.take()
        if not self._options.leave_running:
            self._publish()

    def _let_go(self) -> None:
        """Let the target run on; if its devices do not come back, save the snapshot first."""
        try:
            self._release()
        except GpusnapError:
            self._publish()
            raise
        self._phases.thaw(self._target.pids)

    def _release(self) -> None:
        if self._prepared.driven is None or self._image is None:
            return
        with self._phases.step(Phase.RESTORE) as progress:
            self._prepared.driven.restore(self._pids, SAME_DEVICES, progress)
        with self._phases.step(Phase.UNLOCK):
            release_devices(self._prepared.driven, self._pids)

    def _see_it_gone(self) -> None:
        left = wait_gone([process.id for process in self._target.processes], _DEATH_S)
        if left:
            msg = f"Process {left[0].pid} was killed but is still there after {_DEATH_S:g} s"
            raise TargetError(msg, cure="Wait for it; the snapshot is complete")

    def _publish(self) -> Snapshot:
        self._copy.write()
        self._draft.keep_log(self._draft.work / "dump.log")
        with self._phases.step(Phase.DIGEST) as progress:
            files = self._draft.digest(progress, self._copy.packs)
        with self._phases.step(Phase.PUBLISH):
            self._snapshot = self._draft.publish(self._manifest(files))
        self._emit(_announcement(self._snapshot, self._target.pids))
        return self._snapshot

    def _manifest(self, files: tuple[FileDigest, ...]) -> Manifest:
        backend = self._prepared.backend
        manifest = Manifest(
            format_version=version_for(files),
            id=new_id(),
            name=self._draft.name,
            created=timestamp(),
            gpusnap_version=version("gpusnap"),
            target=self._target,
            backend=backend.name if backend else None,
            claimed=tuple(pid for pid in self._pids if pid in self._target.pids),
            device_regions=self._image,
            memory=self._copy.memory,
            devices=backend.devices() if backend else (),
            driver_version=backend.probe().driver_version if backend else None,
            host=read_host(self._dump.criu),
            engine=self._prepared.engine,
            options=self._prepared.needs.options,
            links=self._links,
            left_running=self._options.leave_running,
            frozen_us=self._phases.frozen_so_far(),
            phases=self._phases.times,
            parent=self._parent_id(),
            tags=self._options.tags,
            files=files,
            findings=self._prepared.findings,
        )
        # That goes by the PID which the program sees from the beginning
        mailbox = self._options.mailbox
        return msgspec.structs.replace(as_inside(manifest, self._outside), mailbox=mailbox)

    def _parent_id(self) -> str | None:
        parent = self._inherited.parent
        return parent.manifest.id if parent is not None and self._copy.memory is not None else None

    def _roll_back(self, error: BaseException) -> None:
        """Make the target run again; what cannot be put right stays in the journal."""
        backend = self._prepared.backend
        self._copy.call_off()
        try:
            roll_back(error, backend, self._pids, self._phases, self._journal)
        finally:
            # Last: its threads may wait for a disk that hangs
            self._copy.abort()
        if not isinstance(error, GpusnapError):
            return
        if self._snapshot is not None:
            error.details += (f"The snapshot {self._snapshot.path} is complete",)
        elif log := self._draft.keep_failure_log():
            error.details += (f"CRIU's log: {log}",)


def _entry(prepared: Prepared, draft: Draft) -> Entry:
    return Entry(
        task=Task.CHECKPOINT,
        owner=myself(),
        processes=tuple(process.id for process in prepared.target.processes),
        claimed=prepared.claimed.pids,
        backend=prepared.backend.name if prepared.backend else None,
        path=str(draft.destination),
    )


def _found_again(target: Target) -> Target:
    """The tree as it is now; a stranger that got the PID meanwhile is not what was meant."""
    root = target.root
    found = find_target(root.pid)
    if not same(found.root.id, root.id):
        msg = f"Process {root.pid} ended, and another one has its PID"
        raise TargetError(msg, cure="Give the PID that your program has now")
    return found


def _announcement(snapshot: Snapshot, pids: tuple[int, ...]) -> SnapshotPublished:
    manifest = snapshot.manifest
    memory = manifest.memory
    inside = f"{snapshot.images.name}/"
    images = sum(file.size for file in manifest.files if file.path.startswith(inside))
    return SnapshotPublished(
        path=str(snapshot.path),
        id=manifest.id,
        parent=manifest.parent,
        pids=pids,
        backend=manifest.backend,
        read_bytes=images + (memory.raw if memory else 0),
        bytes=snapshot.size,
        stored_bytes=snapshot.stored_size,
        reused_bytes=memory.reused if memory else 0,
        devices=manifest.devices,
    )
