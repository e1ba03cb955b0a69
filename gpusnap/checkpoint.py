"""Saves a running process tree: the checkpoint's steps in order, and their way back.

preflight, lock, checkpoint, dump, and then, with ``--kill``, digest and publish while CRIU
holds the tasks, else restore, unlock, digest and publish. Until the snapshot is published any
failure ends with the target running as before.
"""

import contextlib
import os
from collections.abc import Collection, Sequence
from importlib.metadata import version
from pathlib import Path

from gpusnap.arguments import check_codes, check_pid, check_timeout
from gpusnap.bulk_images import find_bulk_images, remove
from gpusnap.checks import (
    check_space,
    downgrade,
)
from gpusnap.criu import (
    GUARD_NAME,
    Range,
    Session,
    find_criu,
    guarded,
    inventory_plugins,
    seal,
)
from gpusnap.datapath import Compression, ImageFile, Pack, Saver, Span, try_disk
from gpusnap.ending import wait_gone
from gpusnap.errors import (
    CriuError,
    DeviceError,
    GpusnapError,
    TargetError,
    UsageError,
    refuse,
)
from gpusnap.events import CriuNotified, Found, Phase, SnapshotPublished
from gpusnap.host import read_host
from gpusnap.inprocess.itself import Checkpointed, save_self
from gpusnap.journal import Entry, Journal, Task
from gpusnap.lineage import Inheritance, inheritance
from gpusnap.links import save_links
from gpusnap.nested import as_inside, entrance, outside_map
from gpusnap.phases import Phases, operation
from gpusnap.pids import SAME
from gpusnap.plan import (
    DEFAULT_LOCK_TIMEOUT_US,
    DEFAULT_TIMEOUT_US,
    DEFAULTS,
    CheckpointOptions,
    Prepared,
    choose_saving,
    prepare,
)
from gpusnap.plugins import Backend, Plugins, default_plugins
from gpusnap.regions import RegionsMovedError, device_spans, host_spans, put_first, settle
from gpusnap.release import SAME_DEVICES, release_devices, roll_back
from gpusnap.repository import (
    Draft,
    FileDigest,
    Manifest,
    SavedLink,
    Snapshot,
    check_tags,
    new_id,
    require_intact,
    resolve_new,
    timestamp,
)
from gpusnap.scrub import Leftover, drop_leftovers, find_leftovers
from gpusnap.target import find_target, myself
from gpusnap.thp import huge_pages
from gpusnap.types import (
    DeviceImage,
    DeviceState,
    Engine,
    Finding,
    Operation,
    SavedMemory,
    Severity,
)

_DEATH_S = 60.0
"""How long a killed process may take to give its memory back."""


def create_checkpoint(  # noqa: PLR0913 - the public call, all by keyword
    pid: int,
    output_path: str | Path | None = None,
    *,
    repository: str | Path | None = None,
    leave_running: bool = True,
    backend: str | None = None,
    engine: str | None = None,
    timeout_us: int = DEFAULT_TIMEOUT_US,
    lock_timeout_us: int = DEFAULT_LOCK_TIMEOUT_US,
    tcp_established: bool = False,
    compress: str | bool = Compression.AUTO.value,
    parallel_workers: int | None = None,
    memory_budget: int | None = None,
    incremental: bool = False,
    parent: str | Path | None = None,
    gpu_sync: bool = False,
    thp: bool = False,
    force: Collection[str] = (),
    tags: Collection[str] = (),
    plugins: Plugins | None = None,
) -> Snapshot | Checkpointed:
    """Save a running process tree, CPU and device state together.

    Args:
        pid: Root of the process tree. A program's own PID saves the program itself, as
            :func:`gpusnap.checkpoint_self` does, with the installed plugins.
        output_path: Path or name of the snapshot; None makes up a name.
        repository: Repository folder; None for the default one.
        leave_running: Whether the target runs on afterwards; False ends it once the snapshot
            is complete.
        backend: Backend to use; None asks all.
        engine: ``driver`` or ``criu-plugin``; None for ``driver`` where the backend offers it.
        timeout_us: How long CRIU may take, in microseconds.
        lock_timeout_us: How long device work under way is waited for, in microseconds.
        tcp_established: Save established TCP connections.
        compress: How memory is compressed: ``auto``, ``none``, ``lz4`` or ``zstd``; True is
            ``auto``, False ``none``.
        parallel_workers: Threads that save memory; None for one a CPU.
        memory_budget: Bytes of host memory for what is not yet written; None for a share of
            what is free.
        incremental: Store only memory that the parent does not have, and once what is there
            twice.
        parent: Path, name or unique prefix of the snapshot to build on, which makes the new one
            incremental; None takes the newest of the same program in the same repository.
        gpu_sync: Read the snapshot back before the call returns, and compare every file with its
            checksum, memory with the CRC-32 that was taken as it left the processes. Work of the
            devices is waited for in any case; of PyTorch in the program itself, before all else.
        thp: Have the kernel use huge pages, on the whole machine, while device memory is moved
            into host memory; put back afterwards.
        force: Codes of error findings to override.
        tags: Words to list and to keep the snapshot by, without commas and spaces.
        plugins: The plugins to use; the installed ones by default.

    Returns:
        The published snapshot; of the program itself, a :class:`gpusnap.Checkpointed`.

    Raises:
        GpusnapError: Some step failed; the target runs on unless the text says otherwise.
    """
    options = CheckpointOptions(
        leave_running=leave_running,
        backend=backend,
        engine=None if engine is None else _engine(engine),
        timeout_us=check_timeout("timeout_us", timeout_us),
        lock_timeout_us=check_timeout("lock_timeout_us", lock_timeout_us),
        tcp_established=tcp_established,
        saving=choose_saving(
            compress,
            workers=parallel_workers,
            budget=memory_budget,
            incremental=incremental or parent is not None,
        ),
        parent=None if parent is None else str(parent),
        thp=thp,
        force=check_codes(force),
        tags=check_tags(tags),
    )
    if check_pid(pid) == os.getpid():
        return save_self(options, output_path, repository=repository, gpu_sync=gpu_sync)
    snapshot = run_checkpoint(
        pid, output_path, repository=repository, options=options, plugins=plugins
    )
    if gpu_sync:
        require_intact(snapshot, lambda *_: None)
    return snapshot


def _engine(name: str) -> Engine:
    try:
        return Engine(name)
    except ValueError:
        msg = f"{name!r} is no engine"
        raise UsageError(msg, cure=f"Name one of {', '.join(Engine)}") from None


def run_checkpoint(
    pid: int,
    output_path: str | Path | None = None,
    *,
    repository: str | Path | None = None,
    options: CheckpointOptions = DEFAULTS,
    plugins: Plugins | None = None,
) -> Snapshot:
    """Save a running process tree; see :func:`create_checkpoint`, here with the options struct."""
    plugins = plugins or default_plugins()
    with operation(plugins.emit, Operation.CHECKPOINT, pid=pid):
        return _prepare_and_run(pid, output_path, repository, options, plugins)


def _prepare_and_run(
    pid: int,
    output_path: str | Path | None,
    repository: str | Path | None,
    options: CheckpointOptions,
    plugins: Plugins,
) -> Snapshot:
    phases = Phases(plugins.emit)
    with phases.step(Phase.PREFLIGHT):
        prepared = prepare(pid, options, plugins)
        refuse(prepared.findings)
        prepared.require_backend()
    with resolve_new(output_path, repository, process_name=prepared.target.root.name) as draft:
        search = options.search(draft.destination.parent, repository)
        with inheritance(prepared.target, search, draft) as inherited:
            space = downgrade(_check_space(prepared, draft, inherited), options.force)
            refuse(space)
            for finding in filter(None, (*prepared.findings, *space, inherited.finding)):
                if finding.severity is Severity.WARNING:
                    plugins.emit(Found(finding=finding))
            return _Checkpoint(prepared, draft, inherited, phases, plugins).run()


def _check_space(prepared: Prepared, draft: Draft, inherited: Inheritance) -> tuple[Finding, ...]:
    where = str(draft.destination.parent)
    parent = inherited.memory is not None
    found = check_space(prepared.estimate_bytes(), draft.free_bytes(), where, parent=parent)
    return tuple(found)


def _published(snapshot: Snapshot, pids: tuple[int, ...]) -> SnapshotPublished:
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


class _Checkpoint:
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
        self._inherited = inherited
        self._criu = prepared.criu or find_criu()
        self._options = prepared.options
        self._draft = draft
        self._phases = phases
        self._emit = plugins.emit
        self._target = prepared.target
        self._pids = prepared.claimed.pids
        self._image: DeviceImage | None = None
        self._snapshot: Snapshot | None = None
        self._links: tuple[SavedLink, ...] = ()
        self._dumping = contextlib.ExitStack()
        self._criu_options = prepared.criu_options()
        self._spans: tuple[Span, ...] = ()
        self._bulk: tuple[ImageFile, ...] = ()
        self._saver: Saver | None = None
        self._memory: SavedMemory | None = None
        self._packs: tuple[Pack, ...] = ()
        self._outside = SAME
        # Tried now, while the target runs.
        measured = prepared.guarded or prepared.packed
        self._disk = try_disk(draft.work, prepared.estimate_bytes()) if measured else None
        self._journal = self._begin_journal()

    def _begin_journal(self) -> Journal:
        backend = self._prepared.backend
        entry = Entry(
            task=Task.CHECKPOINT,
            owner=myself(),
            processes=tuple(process.id for process in self._target.processes),
            claimed=self._pids,
            backend=backend.name if backend else None,
            path=str(self._draft.destination),
        )
        self._phases.journal = Journal.begin(entry)
        return self._phases.journal

    def run(self) -> Snapshot:
        try:
            self._freeze_devices()
            self._dump_past_criu()
            if self._options.leave_running:
                self._let_go()
            else:
                self._see_it_gone()
            snapshot = self._snapshot or self._publish()
        except BaseException as error:
            self._roll_back(error)
            raise
        self._phases.thaw(self._target.pids)
        self._journal.finish()
        return snapshot

    def _freeze_devices(self) -> None:
        driven = self._prepared.driven
        if driven is not None:
            with self._phases.step(Phase.LOCK):
                self._phases.freeze(self._target.pids)
                driven.lock(self._pids, self._options.lock_timeout_us)
        # What is inherited can be told only while the device state is in place.
        leftovers = self._find_leftovers()
        if driven is not None:
            with self._phases.step(Phase.CHECKPOINT) as progress, self._huge_pages(Engine.DRIVER):
                self._image = driven.checkpoint(self._pids, progress)
                self._confirm_checkpointed(driven)
        if leftovers:
            with self._phases.step(Phase.SCRUB):
                drop_leftovers(leftovers)

    def _huge_pages(self, engine: Engine) -> contextlib.AbstractContextManager[None]:
        """On request, while that engine has the driver fill host memory."""
        moving = self._prepared.backend is not None and self._prepared.engine is engine
        return huge_pages(self._emit, wanted=self._options.thp and moving)

    def _find_leftovers(self) -> tuple[Leftover, ...]:
        """What forked children inherited of the device."""
        claim = self._prepared.claimed.claim
        return find_leftovers(find_target(self._target.root.pid), claim) if claim else ()

    def _confirm_checkpointed(self, backend: Backend) -> None:
        """Fail closed: CRIU would dump a process whose device memory is elsewhere, without it."""
        states = backend.state(self._pids)
        for pid in self._pids:
            state = states.get(pid)
            if state is not DeviceState.CHECKPOINTED:
                msg = f"The driver says that process {pid} is {state or 'gone'}, not checkpointed"
                raise DeviceError(msg, pid=pid, state=state)

    def _dump_past_criu(self) -> None:
        """Dump, with the large memory hidden from CRIU if that can be done."""
        if not self._prepared.guarded:
            self._dump()
            return
        device = device_spans(self._image)
        # The tree is read again: it may have forked since preflight.
        tree = find_target(self._target.root.pid)
        self._spans = (*device, *host_spans(tree, device))
        try:
            self._dump()
        except RegionsMovedError:
            # The program maps and unmaps a lot; the device's memory it never touches.
            self._spans = device
            self._draft.start_over()
            self._dump()

    def _dump(self) -> None:
        options = self._criu_options
        if self._spans:
            inside = outside_map(self._target.root.pid).inverse
            # A process that has ended since has no PID there any more, and no memory
            self._spans = tuple(span for span in self._spans if inside.get(span.pid))
            hidden = [
                Range(inside.translate(span.pid), span.start, span.length) for span in self._spans
            ]
            options = guarded(options, self._draft.work, hidden)
        request = self._prepared.request(self._draft.images, self._draft.work, options)
        with (
            entrance(self._target.root.pid) as way_in,
            Session(self._criu, self._journal.criu_started, way_in) as session,
            self._dumping,
        ):
            self._dumping.enter_context(self._phases.step(Phase.DUMP))
            if self._prepared.driven is None:
                self._phases.freeze(self._target.pids)
            with self._huge_pages(Engine.CRIU_PLUGIN):
                session.dump(request, self._notified)
        self._journal.update(criu=None)

    def _notified(self, script: str, _pid: int | None) -> bool:
        self._emit(CriuNotified(script=script))
        if script == "post-dump":
            self._dumping.close()
            # Only now do all processes stand still: some may have been forked since preflight.
            self._target = find_target(self._target.root.pid)
            self._outside = outside_map(self._target.root.pid)
            self._check_images()
            if self._prepared.needs.options.link_remap:
                self._links = save_links(self._target, self._draft.images)
            if self._prepared.packed:
                self._bulk = find_bulk_images(self._prepared.backend, self._draft.images)
            self._copy_memory()
            if not self._options.leave_running:
                self._publish()
        return True

    def _check_images(self) -> None:
        present = inventory_plugins(self._draft.images)
        wanted = self._criu_options.inventory_plugin
        if wanted is not None and wanted not in present:
            msg = f"CRIU's plugin {wanted} took no part in the dump, which lacks the device memory"
            raise CriuError(msg, cure="See CRIU's log")
        if self._spans and GUARD_NAME not in present:
            raise CriuError("The guard plugin took no part in the dump", cure="Use --no-regions")
        for pattern in self._criu_options.expected_images:
            if not any(self._draft.images.glob(pattern)):
                msg = f"The dump has no image {pattern}"
                raise CriuError(msg, cure="See CRIU's log")
        backend = self._prepared.backend
        if backend is not None:
            refuse(backend.verify_images(str(self._draft.images)), CriuError)

    def _copy_memory(self) -> None:
        """Take the hidden memory out of the frozen target; it need not wait for the disk."""
        spans = settle(self._spans, self._target)
        if spans:
            options = self._options
            box = options.mailbox
            owner = self._outside.translate(box.pid) if box else self._target.root.pid
            self._save(Phase.COPY, put_first(spans, owner, options.first))

    def _pack_images(self) -> None:
        """Have images with device memory saved as memory is; they need no frozen target."""
        if self._bulk and self._saver is None:
            self._save(Phase.PACK)

    def _save(self, phase: Phase, spans: Sequence[Span] = ()) -> None:
        seal(self._draft.images)
        parent = self._inherited.memory
        inside = self._outside.inverse.translate
        saving = self._options.saving
        runs_on = self._options.leave_running
        folder = self._draft.regions
        self._saver = Saver(folder, saving, parent, inside, self._disk, runs_on=runs_on)
        total = sum(span.length for span in spans) + sum(sum(file.parts) for file in self._bulk)
        with self._phases.step(phase, total) as progress:
            self._saver.copy(spans, progress, self._bulk)

    def _write_memory(self) -> None:
        if self._saver is None:
            return
        # Where the target ends nothing else is left of what the parent is relied on for.
        check = not self._options.leave_running
        with self._phases.step(Phase.WRITE) as progress:
            self._memory = self._saver.finish(progress, check_parent=check)
        self._packs = self._saver.packs
        self._saver = None
        remove(self._bulk)

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
        self._pack_images()
        self._write_memory()
        self._draft.keep_log(self._draft.work / "dump.log")
        with self._phases.step(Phase.DIGEST) as progress:
            files = self._draft.digest(progress, self._packs)
        with self._phases.step(Phase.PUBLISH):
            self._snapshot = self._draft.publish(self._manifest(files))
        self._emit(_published(self._snapshot, self._target.pids))
        return self._snapshot

    def _manifest(self, files: tuple[FileDigest, ...]) -> Manifest:
        backend = self._prepared.backend
        manifest = Manifest(
            id=new_id(),
            name=self._draft.name,
            created=timestamp(),
            gpusnap_version=version("gpusnap"),
            target=self._target,
            backend=backend.name if backend else None,
            claimed=tuple(pid for pid in self._pids if pid in self._target.pids),
            device_regions=self._image,
            memory=self._memory,
            devices=backend.devices() if backend else (),
            driver_version=backend.probe().driver_version if backend else None,
            host=read_host(self._criu),
            engine=self._prepared.engine,
            options=self._prepared.needs.options,
            links=self._links,
            left_running=self._options.leave_running,
            frozen_us=self._phases.frozen_so_far(),
            phases=self._phases.times,
            parent=self._parent_id(),
            tags=self._options.tags,
            mailbox=self._options.mailbox,
            files=files,
            findings=self._prepared.findings,
        )
        return as_inside(manifest, self._outside)

    def _parent_id(self) -> str | None:
        parent = self._inherited.parent
        return parent.manifest.id if parent is not None and self._memory is not None else None

    def _roll_back(self, error: BaseException) -> None:
        """Make the target run again; what cannot be put right stays in the journal."""
        backend = self._prepared.backend
        try:
            roll_back(error, backend, self._pids, self._phases, self._journal)
        finally:
            # Last: its threads may wait for a disk that hangs
            if self._saver is not None:
                self._saver.abort()
        if not isinstance(error, GpusnapError):
            return
        if self._snapshot is not None:
            error.details += (f"The snapshot {self._snapshot.path} is complete",)
        elif log := self._draft.keep_failure_log():
            error.details += (f"CRIU's log: {log}",)
