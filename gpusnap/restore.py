"""Brings a snapshot back to life: the restore's steps in order.

verify, compare, unpack, criu-restore, fill, restore, unlock. Nothing starts before all files were
found to be whole and devices, PIDs and memory to fit. The memory in packs is read once, in *fill*:
every chunk is compared with its checksum before it is written, and no task runs before all were. A
failure leaves no process behind.
"""

import contextlib
import os
import platform
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from gpusnap.abstract_sockets import Reservations, compare_names
from gpusnap.arguments import check_codes, check_timeout
from gpusnap.bulk_images import check_room
from gpusnap.checks import downgrade
from gpusnap.criu import (
    AbstractName,
    Criu,
    Namespace,
    Overlay,
    RestoreRequest,
    Session,
    equivalent_command,
    find_criu,
    guarded,
    image_pids,
    rename_sockets,
    taken_pids,
    unsealed,
)
from gpusnap.datapath import Filler
from gpusnap.device_map import (
    NO_CHOICE,
    Before,
    DeviceChoice,
    DeviceNames,
    DeviceReference,
    choose_devices,
    map_devices,
)
from gpusnap.errors import (
    GpusnapError,
    IncompatibleError,
    IntegrityError,
    NoBackendError,
    NotFoundError,
    TargetError,
    UsageError,
    refuse,
)
from gpusnap.events import CriuNotified, Found, Phase, SnapshotRestored
from gpusnap.findings import check_known_codes, check_privileges
from gpusnap.inprocess.answers import check_overrides, require_listener, restored
from gpusnap.journal import Entry, Journal, Task
from gpusnap.links import links_in_place
from gpusnap.mailbox import write_answer
from gpusnap.nested import plugin_cannot
from gpusnap.phases import Phases, operation
from gpusnap.pids import SAME, map_of
from gpusnap.plugins import Backend, Plugins, default_plugins
from gpusnap.release import kill_restored, now_ticks, program_path, release_devices
from gpusnap.repository import (
    PhaseTime,
    Snapshot,
    require_intact,
    resolve,
    restore_folder,
)
from gpusnap.sockets import socket_folders
from gpusnap.target import alive, identity, is_zombie, myself, read_process
from gpusnap.thp import check_switch, huge_pages
from gpusnap.trust import check_owner
from gpusnap.types import (
    CriuOptions,
    CriuPhase,
    DeviceMap,
    Engine,
    Finding,
    Operation,
    ProcessId,
    Severity,
)

DEFAULT_TIMEOUT_US = 30 * 60 * 1_000_000
_PID_WAIT_S = 30.0
"""How long a dying process is waited for: one with much memory takes seconds."""


class RestoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a restore is made.

    Attributes:
        backend: Backend to use instead of the snapshot's.
        timeout_us: How long CRIU may take, in microseconds.
        verify_memory: Read filled memory back and compare it.
        thp: Have the kernel use huge pages, on the whole machine, while memory is filled.
        new_pids: Restore into a PID namespace of its own, so that the PIDs need not be free.
        workers: Threads that fill memory; None for one a CPU.
        overlays: What is private to the processes, which then get new PIDs too.
        devices: On which devices, where the user chooses them.
        overrides: Values for the restored program; see
            :func:`gpusnap.inprocess.answers.check_overrides`.
        force: Codes of error findings to override.
    """

    backend: str | None = None
    timeout_us: int = DEFAULT_TIMEOUT_US
    verify_memory: bool = False
    new_pids: bool = False
    workers: int | None = None
    thp: bool = False
    overlays: tuple[Overlay, ...] = ()
    devices: DeviceChoice = NO_CHOICE
    overrides: dict[str, str] = {}
    force: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"{self.workers} workers cannot fill anything")
        if self.overlays and not self.new_pids:
            raise UsageError("A folder can be private only to processes with new PIDs")


_DEFAULTS = RestoreOptions()


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


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore would do."""

    snapshot: str
    pids: tuple[int, ...]
    backend: str | None
    engine: Engine
    device_map: DeviceMap | None
    findings: tuple[Finding, ...]
    criu_command: tuple[str, ...]


class _Comparison(msgspec.Struct, frozen=True):
    findings: tuple[Finding, ...]
    device_map: DeviceMap | None


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that a restore needs to know before its first side effect."""

    snapshot: Snapshot
    criu: Criu
    backend: Backend | None
    device_map: DeviceMap
    request: RestoreRequest
    filler: Filler | None
    options: RestoreOptions

    @property
    def claimed(self) -> tuple[int, ...]:
        return self.snapshot.manifest.claimed

    @property
    def unpacker(self) -> Filler | None:
        """What makes the images again that lie in packs, where some do."""
        return self.filler if self.filler is not None and self.filler.images else None

    @property
    def driven(self) -> Backend | None:
        """The backend whose devices gpusnap drives itself."""
        return self.backend if self.snapshot.manifest.engine is Engine.DRIVER else None


def _backend_of(snapshot: Snapshot, options: RestoreOptions, plugins: Plugins) -> Backend | None:
    name = options.backend or snapshot.manifest.backend
    if name is None or snapshot.manifest.backend is None:
        return None
    backend = plugins.backend(name)
    probe = backend.probe()
    if not probe.usable:
        msg = f"The snapshot needs backend {name}, which cannot work here: {_why(probe.reasons)}"
        raise NoBackendError(msg, cure="Restore on a machine with such devices and their driver")
    return backend


def _why(reasons: tuple[str, ...]) -> str:
    return "; ".join(reasons) or "no reason given"


def _compare(
    snapshot: Snapshot, backend: Backend | None, options: RestoreOptions, *, wait: bool
) -> _Comparison:
    require_listener(snapshot, options.overrides)
    findings = [*check_privileges(), *check_owner(snapshot.path), *_check_host(snapshot)]
    if snapshot.manifest.memory is not None:
        findings += check_room(snapshot.manifest.memory.images)
    if options.thp:
        findings += check_switch()
    device_map: DeviceMap | None = DeviceMap()
    if backend is not None:
        mapped = map_devices(backend, _before(snapshot), backend.devices(), options.devices)
        findings += mapped.findings
        device_map = mapped.device_map
    elif options.devices:
        msg = "The snapshot holds no device state: there is nothing to choose devices for"
        raise UsageError(msg, cure="Leave --device-map and --devices out")
    if options.new_pids:
        findings += _check_new_pids(snapshot)
    else:
        findings += _check_pids(snapshot, _PID_WAIT_S if wait else 0.0)
    return _Comparison(tuple(findings), device_map)


def _before(snapshot: Snapshot) -> Before:
    manifest = snapshot.manifest
    return Before(
        devices=manifest.devices,
        pids=manifest.claimed,
        engine=manifest.engine,
        uses=manifest.device_regions.uses if manifest.device_regions is not None else (),
    )


def _check_host(snapshot: Snapshot) -> Iterator[Finding]:
    saved, here = snapshot.manifest.host.machine, platform.machine()
    if saved != here:
        yield Finding(
            code="host-machine",
            severity=Severity.ERROR,
            text=f"The snapshot was made on a {saved} machine, this one is {here}",
        )
    for process in snapshot.manifest.target.processes:
        path = process.executable
        if path is not None and _is_missing(path):
            yield Finding(
                code="program-missing",
                severity=Severity.ERROR,
                text=f"Process {process.pid} ran {path}, which does not exist here",
                cure="Install the same program at the same path",
                pid=process.pid,
            )


def _is_missing(path: str) -> bool:
    # CRIU carries a program that had been replaced in its images; and a path that is no text
    # stands escaped in the manifest and cannot be looked up.
    if path.endswith(" (deleted)") or "\\udc" in path:
        return False
    try:
        return not Path(path).exists()
    except (OSError, ValueError):  # a path that no file can have
        return True


def _check_pids(snapshot: Snapshot, wait_s: float) -> Iterator[Finding]:
    deadline = time.monotonic() + wait_s
    for pid in snapshot.manifest.target.pids:
        while _is_dying(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        if identity(pid) is not None:
            yield _pid_taken(pid)


def _check_new_pids(snapshot: Snapshot) -> Iterator[Finding]:
    """Name what does not fit into a PID namespace of its own."""
    manifest = snapshot.manifest
    if manifest.backend is not None and manifest.engine is Engine.CRIU_PLUGIN:
        yield plugin_cannot(cure="Restore without --new-pids, or checkpoint with --engine driver")
    if 1 in manifest.target.pids:
        yield Finding(
            code="new-pids-init",
            severity=Severity.ERROR,
            text="The snapshot holds a process with PID 1, which gpusnap's own needs there",
            cure="Restore without --new-pids in a container whose PID 1 is free",
            pid=1,
        )


def _is_dying(pid: int) -> bool:
    """True for a zombie, and for a process whose memory the kernel is taking apart."""
    if is_zombie(pid):
        return True
    try:
        return identity(pid) is not None and not Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return identity(pid) is not None


def _count(killed: tuple[int, ...]) -> str:
    if len(killed) == 1:
        return f"The half-restored process {killed[0]} was"
    return f"{len(killed)} half-restored processes were"


def _pid_taken(pid: int) -> Finding:
    try:
        name = read_process(pid).name
    except NotFoundError:
        name = "a process that just ended"
    if is_zombie(pid):
        text = f"PID {pid} is held by a zombie ({name}) that its parent does not reap"
        cure = "End or fix its parent; start jobs with setsid, so that init reaps them"
    else:
        text = f"PID {pid} is taken by {name}"
        cure = "End that process, or wait until it has ended"
    return Finding(code="pid-taken", severity=Severity.ERROR, text=text, cure=cure, pid=pid)


def plan_restore(
    checkpoint_path: str | Path,
    *,
    repository: str | Path | None = None,
    options: RestoreOptions = _DEFAULTS,
    plugins: Plugins | None = None,
) -> RestorePlan:
    """Say what a restore would do; changes nothing and checks no digests.

    Args:
        checkpoint_path: Path, name or unique prefix of a snapshot, or ``latest``.
        repository: Repository folder; None for the default one.
        options: How it would be made.
        plugins: The plugins to use; the installed ones by default.

    Raises:
        GpusnapError: There is no such snapshot, or nothing to restore it with.
    """
    snapshot = resolve(checkpoint_path, repository)
    plugins = plugins or default_plugins()
    check_known_codes(options.force, plugins)
    backend = _backend_of(snapshot, options, plugins)
    comparison = _compare(snapshot, backend, options, wait=False)
    findings = downgrade(comparison.findings, options.force)
    if all(finding.severity is not Severity.ERROR for finding in findings):
        with Reservations() as reservations:
            sockets = compare_names(snapshot.images, reservations, copy=options.new_pids)
        findings += downgrade(sockets.findings, options.force)
    work = snapshot.path
    request = _request(
        snapshot,
        options,
        _criu_options(snapshot, backend),
        images=snapshot.images,
        work=work,
    )
    return RestorePlan(
        snapshot=str(snapshot.path),
        pids=snapshot.manifest.target.pids,
        backend=backend.name if backend else None,
        engine=snapshot.manifest.engine,
        device_map=comparison.device_map,
        findings=findings,
        criu_command=_command(request, options),
    )


def _command(request: RestoreRequest, options: RestoreOptions) -> tuple[str, ...]:
    command = equivalent_command(find_criu(), request)
    return ("unshare", "--pid", "--mount-proc", "--fork", *command) if options.new_pids else command


def _criu_options(snapshot: Snapshot, backend: Backend | None) -> CriuOptions:
    if backend is None:
        return CriuOptions()
    return backend.criu_options(CriuPhase.RESTORE, snapshot.manifest.engine)


def _request(
    snapshot: Snapshot,
    options: RestoreOptions,
    criu_options: CriuOptions,
    *,
    images: Path,
    work: Path,
) -> RestoreRequest:
    saved = snapshot.manifest.options
    return RestoreRequest(
        images=images,
        work=work,
        shell_job=saved.shell_job,
        tcp_established=saved.tcp_established,
        file_locks=saved.file_locks,
        ext_unix_sockets=saved.ext_unix_sockets,
        options=criu_options,
        timeout_us=options.timeout_us,
    )


def restore_checkpoint(  # noqa: PLR0913 - the public call, all by keyword
    checkpoint_path: str | Path,
    *,
    repository: str | Path | None = None,
    backend: str | None = None,
    timeout_us: int = DEFAULT_TIMEOUT_US,
    thp: bool = False,
    new_pids: bool = False,
    restore_to_original_pid: bool | None = None,
    parallel_workers: int | None = None,
    device_map: DeviceNames = (),
    devices: Collection[DeviceReference] = (),
    overrides: Mapping[str, str] | None = None,
    force: Collection[str] = (),
    plugins: Plugins | None = None,
) -> RestoredTarget:
    """Bring a saved process tree back with its PIDs, on the devices it was saved on or their like.

    Args:
        checkpoint_path: Path, name or unique prefix of a snapshot, or ``latest``.
        repository: Repository folder; None for the default one.
        backend: Backend to use instead of the snapshot's.
        timeout_us: How long CRIU may take, in microseconds.
        thp: Have the kernel use huge pages, on the whole machine, while memory is filled; put
            back afterwards.
        new_pids: Restore into a PID and mount namespace of its own: the processes see their old
            PIDs, others see new ones, and the snapshot can run several times at once.
        restore_to_original_pid: The same question the other way round: False is ``new_pids``.
        parallel_workers: Threads that fill memory; None for one a CPU.
        device_map: Saved devices and those that are to replace them, each by its index, its UUID
            or a unique beginning of that; what is not named follows by itself.
        devices: The devices that the processes may use, named likewise; by default all.
        overrides: Names and texts for a program that saved itself: its ``checkpoint_self()``
            returns them.
        force: Codes of error findings to override.
        plugins: The plugins to use; the installed ones by default.

    Returns:
        The processes, which compute again.

    Raises:
        IntegrityError: The snapshot is damaged; nothing of it has run, and nothing is left.
        IncompatibleError: Devices, PIDs or host do not fit, or nobody would read the
            overrides; nothing was started.
        NotFoundError: There is no such snapshot, or no such device.
        UsageError: The choice of devices contradicts itself.
        GpusnapError: A later step failed; what had been started was killed.
    """
    options = RestoreOptions(
        backend=backend,
        timeout_us=check_timeout("timeout_us", timeout_us),
        thp=thp,
        new_pids=_wants_new_pids(original=restore_to_original_pid, new_pids=new_pids),
        workers=parallel_workers,
        devices=choose_devices(device_map, devices),
        overrides=check_overrides(overrides or {}),
        force=check_codes(force),
    )
    return run_restore(checkpoint_path, repository=repository, options=options, plugins=plugins)


def _wants_new_pids(*, original: bool | None, new_pids: bool) -> bool:
    if new_pids and original:
        msg = "restore_to_original_pid and new_pids contradict each other"
        raise UsageError(msg, cure="Leave one of them out")
    return new_pids or original is False


def run_restore(
    checkpoint_path: str | Path,
    *,
    repository: str | Path | None = None,
    options: RestoreOptions = _DEFAULTS,
    plugins: Plugins | None = None,
) -> RestoredTarget:
    """Restore a snapshot; see :func:`restore_checkpoint`, here with the options struct."""
    plugins = plugins or default_plugins()
    with operation(plugins.emit, Operation.RESTORE, snapshot=str(checkpoint_path)):
        check_known_codes(options.force, plugins)
        refuse(tuple(check_privileges()), IncompatibleError)
        snapshot = resolve(checkpoint_path, repository)
        phases = Phases(plugins.emit)
        with snapshot.hold(), Reservations() as reservations:
            return _check_and_run(snapshot, options, phases, plugins, reservations)


def _check_and_run(
    snapshot: Snapshot,
    options: RestoreOptions,
    phases: Phases,
    plugins: Plugins,
    reservations: Reservations,
) -> RestoredTarget:
    with phases.step(Phase.VERIFY, snapshot.size) as progress:
        require_intact(snapshot, progress, memory=snapshot.manifest.memory is None)
    with phases.step(Phase.COMPARE):
        backend = _backend_of(snapshot, options, plugins)
        comparison = _compare(snapshot, backend, options, wait=True)
        findings = downgrade(comparison.findings, options.force)
        refuse(findings, IncompatibleError)
        if options.devices and comparison.device_map is None:  # no force finds what is not there
            refuse(comparison.findings, IncompatibleError)
        # Last: images are not looked into before it is known that they are trusted, and of a
        # program that still runs its PIDs say enough
        sockets = compare_names(snapshot.images, reservations, copy=options.new_pids)
        findings += downgrade(sockets.findings, options.force)
        refuse(findings, IncompatibleError)
    for finding in findings:
        if finding.severity is Severity.WARNING:
            plugins.emit(Found(finding=finding))
    filler = _open_regions(snapshot, options.workers)
    with (
        restore_folder(snapshot.path.parent, snapshot.name) as work,
        _images(snapshot, filler, work, sockets.renamed) as images,
        _namespace(snapshot, options) as namespace,
    ):
        if namespace is not None:
            for overlay in options.overlays:
                namespace.lay(overlay)
        criu_options = _criu_options(snapshot, backend)
        if filler is not None and filler.spans:
            criu_options = guarded(criu_options, work, None)
        plan = _Plan(
            snapshot=snapshot,
            criu=find_criu(),
            backend=backend,
            device_map=comparison.device_map or DeviceMap(),
            request=_request(snapshot, options, criu_options, images=images, work=work),
            filler=filler,
            options=options,
        )
        return _Restore(plan, phases, plugins, namespace).run()


@contextlib.contextmanager
def _images(
    snapshot: Snapshot,
    filler: Filler | None,
    work: Path,
    names: Mapping[AbstractName, AbstractName],
) -> Iterator[Path]:
    """The folder that CRIU is to read, inside the block."""
    if filler is None and not names:
        yield snapshot.images
        return
    images = unsealed(snapshot.images, work)
    try:
        if names:
            rename_sockets(images, names)
        yield images
    finally:
        # The logs beside it may be kept; what was unpacked is as large as the devices' memory.
        shutil.rmtree(images, ignore_errors=True)


def _namespace(
    snapshot: Snapshot, options: RestoreOptions
) -> contextlib.AbstractContextManager[Namespace | None]:
    if not options.new_pids:
        return contextlib.nullcontext()
    root = snapshot.manifest.target.root.pid
    return Namespace((root, *taken_pids(snapshot.images)))


def _open_regions(snapshot: Snapshot, workers: int | None = None) -> Filler | None:
    """What fills the memory that went past CRIU.

    Raises:
        IntegrityError: The regions are damaged, or of processes that are not the snapshot's:
            those must never be written into.
    """
    if snapshot.manifest.memory is None:
        return None
    filler = Filler(snapshot.regions, workers=workers)
    # CRIU makes those of its images; the manifest's were checked for PIDs that are taken
    known = {*snapshot.manifest.target.pids} & {*image_pids(snapshot.images)}
    strangers = {span.pid for span in filler.spans} - known
    if strangers:
        msg = f"The regions of {snapshot.name} hold memory of process {min(strangers)}, a stranger"
        raise IntegrityError(msg)
    return filler


def _restored(plan: _Plan, pids: tuple[int, ...]) -> SnapshotRestored:
    return SnapshotRestored(
        path=str(plan.snapshot.path),
        id=plan.snapshot.manifest.id,
        pids=pids,
        backend=plan.backend.name if plan.backend else None,
        bytes=plan.snapshot.size,
    )


class _Restore:
    """One run of the state machine, from the first side effect on."""

    def __init__(
        self, plan: _Plan, phases: Phases, plugins: Plugins, namespace: Namespace | None
    ) -> None:
        self._plan = plan
        self._namespace = namespace
        self._pids = SAME
        self._standing: tuple[ProcessId, ...] = ()
        self._target = plan.snapshot.manifest.target
        self._phases = phases
        self._emit = plugins.emit
        self._restoring = contextlib.ExitStack()
        self._journal = self._begin_journal()

    def _begin_journal(self) -> Journal:
        started, criu, namespace = now_ticks(), self._plan.criu, self._namespace
        saved = self._target.processes
        programs = {program_path(each.executable) for each in saved if each.executable}
        to_come = tuple(ProcessId(process.pid, started) for process in saved)
        entry = Entry(
            task=Task.RESTORE,
            owner=myself(),
            processes=to_come if namespace is None else (namespace.init,),
            made=namespace is not None,
            claimed=self._plan.claimed if namespace is None else (),
            backend=self._plan.backend.name if self._plan.backend else None,
            executables=(*sorted(programs), *map(os.path.realpath, (criu.path, criu.command[0]))),
            path=str(self._plan.snapshot.path),
            unpacked=str(self._plan.request.images) if self._plan.unpacker else None,
        )
        self._phases.journal = Journal.begin(entry)
        return self._phases.journal

    def run(self) -> RestoredTarget:
        try:
            self._unpack_images()
            self._restore_processes()
            self._restore_devices()
            processes = self._processes()
            self._let_go()
        except BaseException as error:
            self._clean_up(error)
            raise
        self._journal.finish()
        return RestoredTarget(
            root_pid=self._pids.translate(self._target.root.pid),
            processes=processes,
            snapshot=str(self._plan.snapshot.path),
            device_map=self._plan.device_map,
            phases=self._phases.times,
            new_pids=tuple(zip(self._target.pids, self._outside, strict=True))
            if self._namespace is not None
            else (),
            init_pid=self._namespace.init.pid if self._namespace is not None else None,
        )

    def _let_go(self) -> None:
        """From here on the tree lives whatever becomes of gpusnap, and a signal comes too late."""
        if self._namespace is not None:
            # Not before: until it is let go it ends with gpusnap
            self._journal.update(resumed=True)
        self._emit(_restored(self._plan, self._outside))
        if self._namespace is not None:
            self._namespace.let_go()

    @property
    def _outside(self) -> tuple[int, ...]:
        """The PIDs of the tree as they are here."""
        return self._pids.translate_all(self._target.pids)

    def _unpack_images(self) -> None:
        """Make the images that lie in packs again, for CRIU's plugin to read."""
        if (unpacker := self._plan.unpacker) is not None:
            with self._phases.step(Phase.UNPACK) as progress:
                unpacker.write_images(self._plan.request.images, progress)

    def _restore_processes(self) -> None:
        snapshot = self._plan.snapshot
        session = Session(self._plan.criu, self._journal.criu_started, self._namespace)
        with session, self._restoring:
            self._restoring.enter_context(self._phases.step(Phase.CRIU_RESTORE))
            links = links_in_place(snapshot.manifest.links, snapshot.images)
            folders = socket_folders(snapshot.images)
            with links, folders, huge_pages(self._emit, wanted=self._plan.options.thp):
                session.restore(self._plan.request, self._notified, self._watch)
        self._journal.update(criu=None)

    def _notified(self, script: str, _pid: int | None) -> bool:
        if script == "post-restore":
            self._note_processes()
        if script == "pre-resume":
            self._standing = ()
        if script == "post-resume" and self._namespace is None:
            self._journal.update(resumed=True)
        self._emit(CriuNotified(script=script))
        if script == "post-restore":
            self._fill_memory()
            self._answer_program()
        return True

    def _note_processes(self) -> None:
        """All exist now and none runs: these very ones are to be ended on failure."""
        if self._namespace is not None:
            self._pids = map_of(self._namespace.init.pid)
        made = [identity(pid) for pid in self._outside]
        present = tuple(each for each in made if each is not None)
        self._standing = tuple(filter(alive, present))  # a saved zombie is none
        if self._namespace is not None:
            claimed = self._pids.translate_all(self._plan.claimed)
            self._journal.update(processes=(self._namespace.init, *present), claimed=claimed)
        elif len(present) == len(made):
            self._journal.update(processes=present, made=True)

    def _watch(self) -> None:
        """For one that is killed before it could run CRIU would wait for ever."""
        for process in self._standing:
            if not alive(process):
                raise TargetError(f"Process {process.pid} was killed while it was being restored")

    def _fill_memory(self) -> None:
        """Put back what was saved past CRIU, before any task runs; a failure ends the tree."""
        filler = self._plan.filler
        if filler is None:
            return
        self._restoring.close()
        with self._phases.step(Phase.FILL, filler.raw_bytes) as progress:
            verify = self._plan.options.verify_memory
            filler.fill(progress, verify=verify, pids=self._pids.translate)

    def _answer_program(self) -> None:
        """Tell a program that had itself saved that it was restored, before any task runs."""
        plan = self._plan
        mailbox = plan.snapshot.manifest.mailbox
        if mailbox is not None:
            answer = restored(plan.snapshot, plan.device_map, plan.options.overrides)
            write_answer(self._pids.translate(mailbox.pid), mailbox, answer)

    def _restore_devices(self) -> None:
        backend = self._plan.driven
        if backend is None:
            return
        claimed = self._pids.translate_all(self._plan.claimed)
        with self._phases.step(Phase.RESTORE) as progress:
            backend.restore(claimed, self._plan.device_map, progress)
        with self._phases.step(Phase.UNLOCK):
            self._unlock(backend, claimed)

    @staticmethod
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

    def _processes(self) -> tuple[ProcessId, ...]:
        root = self._pids.translate(self._target.root.pid)
        # The first process of a namespace keeps the exit code of a root that has ended already
        if identity(root) is None and self._namespace is None:
            msg = f"Process {root} ended right after its restore"
            raise GpusnapError(msg, cure="Look at the program's own output")
        found = (identity(pid) for pid in self._outside)
        return tuple(one for one in found if one is not None)

    def _clean_up(self, error: BaseException) -> None:
        """Leave no half-restored process; the snapshot stays as it was."""
        with self._phases.step(Phase.ROLLBACK):
            entry = self._journal.entry
            killed = kill_restored(entry)
        with contextlib.suppress(GpusnapError):  # a journal too many does no harm
            self._journal.finish()
        if isinstance(error, GpusnapError):
            error.details += ("The snapshot is unchanged",)
            error.details += (f"{_count(killed)} killed",) if killed else ()
