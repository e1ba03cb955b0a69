"""What a checkpoint will do: its options, the preflight, and the plan that is shown."""

from pathlib import Path

import msgspec

from gpusnap.checks import (
    Claimed,
    check_criu,
    check_privileges,
    choose_backend,
    downgrade,
    estimate_bytes,
    inspect_target,
    needs_shell_job,
)
from gpusnap.criu import (
    Criu,
    DumpRequest,
    equivalent_command,
    guard_works,
    search_criu,
)
from gpusnap.datapath import Compression, Saving
from gpusnap.errors import (
    UsageError,
    refuse,
)
from gpusnap.plugins import Backend, Plugins, default_plugins
from gpusnap.repository import (
    planned_path,
)
from gpusnap.target import find_target
from gpusnap.types import (
    Capability,
    CriuOptions,
    CriuPhase,
    Engine,
    Finding,
    Operation,
    Severity,
    Target,
)

DEFAULT_TIMEOUT_US = 30 * 60 * 1_000_000
DEFAULT_LOCK_TIMEOUT_US = 10 * 1_000_000


class CheckpointOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint is made.

    Attributes:
        leave_running: Whether the target runs on afterwards.
        backend: Backend to use, or None to ask all.
        engine: Who drives the device.
        timeout_us: How long CRIU may take, in microseconds.
        lock_timeout_us: How long device work under way is waited for, in microseconds.
        tcp_established: Save established TCP connections.
        file_locks: Save file locks.
        external_unix_sockets: Save unix sockets connected to processes outside the tree.
        link_remap: Let CRIU link deleted files that are still open.
        regions: Save device memory and large host memory past CRIU, in parallel.
        saving: How that memory is compressed, by how many threads, within which budget.
        force: Codes of error findings to override.
    """

    leave_running: bool = True
    backend: str | None = None
    engine: Engine = Engine.DRIVER
    timeout_us: int = DEFAULT_TIMEOUT_US
    lock_timeout_us: int = DEFAULT_LOCK_TIMEOUT_US
    tcp_established: bool = False
    file_locks: bool = False
    external_unix_sockets: bool = False
    link_remap: bool = False
    regions: bool = True
    saving: Saving = Saving()
    force: frozenset[str] = frozenset()


DEFAULTS = CheckpointOptions()


def choose_saving(
    compress: str = Compression.AUTO.value, *, workers: int | None = None, budget: int | None = None
) -> Saving:
    """How memory is saved, from what a caller says and defaults for the rest.

    Args:
        compress: ``auto``, ``none``, ``lz4`` or ``zstd``.
        workers: Threads; None for one a CPU.
        budget: Bytes of host memory for what is not yet written; None for a share of the free.

    Raises:
        UsageError: No such compression.
    """
    try:
        compression = Compression(compress)
    except ValueError:
        msg = f"{compress!r} is no compression"
        raise UsageError(msg, cure=f"Name one of {', '.join(Compression)}") from None
    return Saving(compression=compression, workers=workers, budget=budget)


class CheckpointPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint would do."""

    target: Target
    backend: str | None
    claimed: tuple[int, ...]
    engine: Engine
    findings: tuple[Finding, ...]
    snapshot_path: str
    estimated_bytes: int
    criu_command: tuple[str, ...]


class Prepared(msgspec.Struct, frozen=True):
    """What the preflight found out; ``criu`` is None where none was found."""

    target: Target
    claimed: Claimed
    findings: tuple[Finding, ...]
    criu: Criu | None
    options: CheckpointOptions
    guarded: bool
    """Whether CRIU can be kept from saving what gpusnap saves itself."""

    @property
    def backend(self) -> Backend | None:
        """The backend that has claimed processes of the target."""
        return self.claimed.backend

    @property
    def driven(self) -> Backend | None:
        """The backend whose devices gpusnap drives itself."""
        return self.backend if self.options.engine is Engine.DRIVER else None

    def require_backend(self) -> None:
        """Raise NoBackendError where the backend cannot do it this way."""
        if self.backend is not None:
            driven = self.options.engine is Engine.DRIVER
            self.backend.require(Capability.CHECKPOINT if driven else Capability.CRIU_PLUGIN)

    def criu_options(self) -> CriuOptions:
        """What the backend asks of CRIU."""
        if self.backend is None:
            return CriuOptions()
        return self.backend.criu_options(CriuPhase.DUMP, self.options.engine)

    def request(
        self, images: Path, work: Path, criu_options: CriuOptions | None = None
    ) -> DumpRequest:
        """What CRIU is asked for; with other options than the backend's where given."""
        options = self.options
        return DumpRequest(
            pid=self.target.root.pid,
            images=images,
            work=work,
            leave_running=options.leave_running,
            shell_job=needs_shell_job(self.target),
            tcp_established=options.tcp_established,
            file_locks=options.file_locks,
            link_remap=options.link_remap,
            ext_unix_sockets=options.external_unix_sockets,
            options=criu_options or self.criu_options(),
            timeout_us=options.timeout_us,
        )


def prepare(pid: int, options: CheckpointOptions, plugins: Plugins) -> Prepared:
    """Look at a target and the machine, changing nothing; error findings are not raised."""
    target = find_target(pid)
    refuse(tuple(check_privileges()))
    search = search_criu()
    machine = tuple(check_criu(search))
    claimed = choose_backend(target, plugins, options.backend)
    findings = (*machine, *inspect_target(target, claimed, Operation.CHECKPOINT))
    wanted = options.regions and options.engine is Engine.DRIVER and search.criu is not None
    reason = guard_works(search.criu) if wanted and search.criu is not None else None
    if reason is not None:
        findings = (*findings, _unguarded(reason))
    return Prepared(
        target=target,
        claimed=claimed,
        findings=downgrade(findings, options.force),
        criu=search.criu,
        options=options,
        guarded=wanted and reason is None,
    )


def _unguarded(reason: str) -> Finding:
    return Finding(
        code="guard-unusable",
        severity=Severity.WARNING,
        text=f"CRIU saves all memory by itself, which takes longer: {reason}",
        cure="Use the CRIU of gpusnap setup-criu",
    )


def plan_checkpoint(
    pid: int,
    output_path: str | Path | None = None,
    *,
    repository: str | Path | None = None,
    options: CheckpointOptions = DEFAULTS,
    plugins: Plugins | None = None,
) -> CheckpointPlan:
    """Say what a checkpoint would do; changes nothing.

    Args:
        pid: Root of the process tree.
        output_path: Path or name of the snapshot; None makes up a name.
        repository: Repository folder; None for the default one.
        options: How it would be made.
        plugins: The plugins to use; the installed ones by default.

    Raises:
        GpusnapError: The process or the backend cannot be used at all. Error findings are in
            the plan, not raised.
    """
    prepared = prepare(pid, options, plugins or default_plugins())
    path = planned_path(output_path, repository, process_name=prepared.target.root.name)
    command: tuple[str, ...] = ()
    if prepared.criu is not None:
        command = equivalent_command(prepared.criu, prepared.request(path / "criu", path))
    return CheckpointPlan(
        target=prepared.target,
        backend=prepared.backend.name if prepared.backend else None,
        claimed=prepared.claimed.pids,
        engine=options.engine,
        findings=prepared.findings,
        snapshot_path=str(path),
        estimated_bytes=estimate_bytes(prepared.target, prepared.claimed),
        criu_command=command,
    )
