"""What a restore will do: the plan that is shown, and all that is known before it begins."""

from pathlib import Path

import msgspec

from gpusnap.abstract_sockets import Reservations, compare_names
from gpusnap.checks import downgrade
from gpusnap.compatibility import backend_of, compare
from gpusnap.criu import Criu, RestoreRequest, equivalent_command, find_criu
from gpusnap.datapath import Filler
from gpusnap.findings import check_known_codes
from gpusnap.plugins import Backend, Plugins, default_plugins
from gpusnap.repository import Snapshot, resolve
from gpusnap.restore_options import DEFAULTS, RestoreOptions
from gpusnap.types import CriuOptions, CriuPhase, DeviceMap, Engine, Finding, Severity


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore would do."""

    snapshot: str
    pids: tuple[int, ...]
    backend: str | None
    engine: Engine
    device_map: DeviceMap | None
    findings: tuple[Finding, ...]
    criu_command: tuple[str, ...]


class PreparedRestore(msgspec.Struct, frozen=True, kw_only=True):
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
        """PIDs with device state, as they are in the snapshot."""
        return self.snapshot.manifest.claimed

    @property
    def unpacker(self) -> Filler | None:
        """What makes the images again that lie in packs, where some do."""
        return self.filler if self.filler is not None and self.filler.images else None

    @property
    def driven(self) -> Backend | None:
        """The backend whose devices gpusnap drives itself."""
        return self.backend if self.snapshot.manifest.engine is Engine.DRIVER else None


def plan_restore(
    checkpoint_path: str | Path,
    *,
    repository: str | Path | None = None,
    options: RestoreOptions = DEFAULTS,
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
    backend = backend_of(snapshot, options, plugins)
    comparison = compare(snapshot, backend, options, wait=False)
    findings = downgrade(comparison.findings, options.force)
    if all(finding.severity is not Severity.ERROR for finding in findings):
        with Reservations() as reservations:
            sockets = compare_names(snapshot.images, reservations, copy=options.new_pids)
        findings += downgrade(sockets.findings, options.force)
    work = snapshot.path
    request = make_request(
        snapshot,
        options,
        criu_options_of(snapshot, backend),
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


def criu_options_of(snapshot: Snapshot, backend: Backend | None) -> CriuOptions:
    """What the backend asks of CRIU."""
    if backend is None:
        return CriuOptions()
    return backend.criu_options(CriuPhase.RESTORE, snapshot.manifest.engine)


def make_request(
    snapshot: Snapshot,
    options: RestoreOptions,
    criu_options: CriuOptions,
    *,
    images: Path,
    work: Path,
) -> RestoreRequest:
    """What CRIU is asked for.

    Args:
        snapshot: Made with the options that hold for its restore too.
        options: How it is restored.
        criu_options: What the backend needs, and the guard.
        images: The folder that CRIU reads.
        work: Existing folder for its log.
    """
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
