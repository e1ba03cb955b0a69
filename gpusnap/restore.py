"""Brings a snapshot back to life: the restore's steps in order.

compare, verify, unpack, criu-restore, fill, restore, unlock. Nothing starts before devices, PIDs
and memory were found to fit and all files to be whole. The files are read from the beginning on;
*verify* is what that takes longer than *compare*. The memory in packs is read once, in *fill*:
every chunk is compared with its checksum before it is written, and no task runs before all were. A
failure leaves no process behind.

:mod:`gpusnap.compatibility` compares, :mod:`gpusnap.restore_steps` has the steps from *unpack* on,
:mod:`gpusnap.restore_session` what CRIU does and what is done between its stages.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpusnap.abstract_sockets import Reservations, compare_names
from gpusnap.arguments import check_codes, check_timeout
from gpusnap.checks import downgrade
from gpusnap.compatibility import backend_of, compare
from gpusnap.criu import Namespace, find_criu, guarded, taken_pids
from gpusnap.device_map import DeviceNames, DeviceReference, choose_devices
from gpusnap.errors import GpusnapError, IncompatibleError, UsageError, refuse
from gpusnap.events import Found, Phase
from gpusnap.findings import check_known_codes, check_privileges
from gpusnap.inprocess.answers import check_overrides
from gpusnap.phases import Phases, operation
from gpusnap.plugins import Backend, Plugins, default_plugins
from gpusnap.repository import FilesVerified, Snapshot, resolve, restore_folder
from gpusnap.repository.storage import storage
from gpusnap.restore_images import images_for_criu, open_regions
from gpusnap.restore_options import DEFAULT_TIMEOUT_US, DEFAULTS, RestoreOptions
from gpusnap.restore_plan import (
    PreparedRestore,
    RestorePlan,
    criu_options_of,
    make_request,
    plan_restore,
)
from gpusnap.restore_steps import Restore, RestoredTarget
from gpusnap.types import DeviceMap, Finding, Operation, Severity

__all__ = [
    "DEFAULT_TIMEOUT_US",
    "RestoreOptions",
    "RestorePlan",
    "RestoredTarget",
    "plan_restore",
    "restore_checkpoint",
    "run_restore",
]


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
    options: RestoreOptions = DEFAULTS,
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
            return _verify_and_run(snapshot, options, phases, plugins, reservations)


def _verify_and_run(
    snapshot: Snapshot,
    options: RestoreOptions,
    phases: Phases,
    plugins: Plugins,
    reservations: Reservations,
) -> RestoredTarget:
    with ThreadPoolExecutor(1) as aside, FilesVerified(snapshot) as files:
        # Both go on while the devices' driver is waited for
        found = aside.submit(find_criu)
        try:
            with phases.step(Phase.COMPARE):
                backend = backend_of(snapshot, options, plugins)
                findings, device_map = _require_fit(snapshot, backend, options)
        except GpusnapError:
            # What is missing or damaged is told before what does not fit
            found.result()
            files.wait(lambda _done, _of: None)
            raise
        criu = found.result()
        with phases.step(Phase.VERIFY, snapshot.size) as progress:
            saved = files.wait(progress)
            # Only now: images are not looked into before it is known that they are trusted
            sockets = compare_names(snapshot.images, reservations, copy=options.new_pids)
            findings += downgrade(sockets.findings, options.force)
            refuse(findings, IncompatibleError)
    for finding in findings:
        if finding.severity is Severity.WARNING:
            plugins.emit(Found(finding=finding))
    filler = open_regions(snapshot, options.workers, saved)
    with (
        restore_folder(snapshot.path.parent, snapshot.name) as work,
        images_for_criu(snapshot, filler, work, sockets.renamed) as images,
        _namespace(snapshot, options) as namespace,
    ):
        criu_options = criu_options_of(snapshot, backend)
        if filler is not None and filler.spans:
            with storage("write to", work):
                criu_options = guarded(criu_options, work, None)
        prepared = PreparedRestore(
            snapshot=snapshot,
            criu=criu,
            backend=backend,
            device_map=device_map,
            request=make_request(snapshot, options, criu_options, images=images, work=work),
            filler=filler,
            options=options,
        )
        return Restore(prepared, phases, plugins, namespace).run()


def _require_fit(
    snapshot: Snapshot, backend: Backend | None, options: RestoreOptions
) -> tuple[tuple[Finding, ...], DeviceMap]:
    """What is to be told before the restore, and onto which devices it goes; else the refusal."""
    comparison = compare(snapshot, backend, options, wait=True)
    findings = downgrade(comparison.findings, options.force)
    refuse(findings, IncompatibleError)
    if options.devices and comparison.device_map is None:  # no force finds what is not there
        refuse(comparison.findings, IncompatibleError)
    return findings, comparison.device_map or DeviceMap()


@contextlib.contextmanager
def _namespace(snapshot: Snapshot, options: RestoreOptions) -> Iterator[Namespace | None]:
    """Where CRIU makes the processes; None for here."""
    if not options.new_pids:
        yield None
        return
    root = snapshot.manifest.target.root.pid
    with Namespace((root, *taken_pids(snapshot.images)), options.leash) as namespace:
        for overlay in options.overlays:
            namespace.lay(overlay)
        yield namespace
