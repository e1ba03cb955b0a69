"""What a checkpoint will do: its options, the preflight, and the plan that is shown."""

from pathlib import Path

import msgspec

from gpusnap.checks import (
    Claimed,
    choose_backend,
    downgrade,
    estimate_bytes,
    inspect_target,
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
from gpusnap.findings import (
    Choice,
    Needs,
    Wishes,
    check_criu,
    check_known_codes,
    check_privileges,
)
from gpusnap.lineage import Search, inheritance
from gpusnap.mailbox import Mailbox
from gpusnap.nested import check_engine, entering
from gpusnap.plugins import Backend, Plugins, default_plugins
from gpusnap.repository import (
    planned_path,
)
from gpusnap.target import find_target, inside_pid
from gpusnap.thp import check_switch
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
        engine: Who drives the device; None for gpusnap where the backend offers that, else
            CRIU's plugin.
        timeout_us: How long CRIU may take, in microseconds.
        lock_timeout_us: How long device work under way is waited for, in microseconds.
        tcp_established: Save established TCP connections.
        file_locks: Save file locks; None to do so where the tree holds some.
        external_unix_sockets: Save Unix datagram sockets connected to processes outside the
            tree; None to do so where there are some.
        link_remap: Link files that are in use and have another name alone; None to do so where
            there are some.
        regions: Save device memory and large host memory past CRIU, in parallel.
        saving: How that memory is compressed, by how many threads, within which budget.
        parent: The snapshot that an incremental one builds on: path, name or unique prefix;
            None has it chosen.
        thp: Have the kernel use huge pages, on the whole machine, while device memory is moved
            into host memory.
        force: Codes of error findings to override.
        tags: Words to list and to keep the snapshot by; see
            :func:`gpusnap.repository.check_tags`.
        mailbox: Where a process of the target waits for an answer, if it asked for this itself.
        first: Memory that is saved first, as addresses and lengths in bytes, of the process
            with the mailbox, or else of the root.
    """

    leave_running: bool = True
    backend: str | None = None
    engine: Engine | None = None
    timeout_us: int = DEFAULT_TIMEOUT_US
    lock_timeout_us: int = DEFAULT_LOCK_TIMEOUT_US
    tcp_established: bool = False
    file_locks: bool | None = None
    external_unix_sockets: bool | None = None
    link_remap: bool | None = None
    regions: bool = True
    saving: Saving = Saving()
    parent: str | None = None
    thp: bool = False
    force: frozenset[str] = frozenset()
    tags: tuple[str, ...] = ()
    mailbox: Mailbox | None = None
    first: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot go together."""
        if self.saving.incremental and not self.regions:
            raise _not_incremental()

    @property
    def wishes(self) -> Wishes:
        """What is said here of CRIU's options."""
        return Wishes(
            tcp_established=self.tcp_established,
            file_locks=self.file_locks,
            external_unix_sockets=self.external_unix_sockets,
            link_remap=self.link_remap,
        )

    def search(self, folder: Path, repository: str | Path | None) -> Search | None:
        """Where the parent is looked for; None for a snapshot that is not incremental."""
        if not self.saving.incremental:
            return None
        return Search(parent=self.parent, repository=repository, folder=folder)


def _not_incremental() -> UsageError:
    return UsageError(
        "Memory that CRIU saves cannot be saved incrementally",
        cure="Leave out --no-regions and --engine criu-plugin",
    )


DEFAULTS = CheckpointOptions()


def choose_saving(
    compress: str | bool = Compression.AUTO.value,  # noqa: FBT001 - one word of several
    *,
    workers: int | None = None,
    budget: int | None = None,
    incremental: bool = False,
) -> Saving:
    """How memory is saved, from what a caller says and defaults for the rest.

    Args:
        compress: ``auto``, ``none``, ``lz4`` or ``zstd``; True is ``auto``, False ``none``.
        workers: Threads; None for one a CPU.
        budget: Bytes of host memory for what is not yet written; None for a share of the free.
        incremental: Whether what a parent has is not stored again.

    Raises:
        UsageError: No such compression.
    """
    if isinstance(compress, bool):
        compress = Compression.AUTO if compress else Compression.NONE
    try:
        compression = Compression(compress)
    except ValueError:
        msg = f"{compress!r} is no compression"
        raise UsageError(msg, cure=f"Name one of {', '.join(Compression)}") from None
    return Saving(compression=compression, workers=workers, budget=budget, incremental=incremental)


class CheckpointPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint would do.

    Attributes:
        chosen: Options of CRIU that the tree asks for and the user did not name.
        incremental: Whether it would store only what is new.
        parent: Path of the snapshot that it would build on; None where it would store all.
    """

    target: Target
    backend: str | None
    claimed: tuple[int, ...]
    engine: Engine
    findings: tuple[Finding, ...]
    snapshot_path: str
    estimated_bytes: int
    criu_command: tuple[str, ...]
    chosen: tuple[Choice, ...] = ()
    incremental: bool = False
    parent: str | None = None


class Prepared(msgspec.Struct, frozen=True):
    """What the preflight found out; ``criu`` is None where none was found."""

    target: Target
    claimed: Claimed
    findings: tuple[Finding, ...]
    criu: Criu | None
    options: CheckpointOptions
    engine: Engine
    needs: Needs
    guarded: bool
    """Whether CRIU can be kept from saving what gpusnap saves itself."""
    packed: bool
    """Whether images that hold device memory go into packs."""

    @property
    def backend(self) -> Backend | None:
        """The backend that has claimed processes of the target."""
        return self.claimed.backend

    @property
    def driven(self) -> Backend | None:
        """The backend whose devices gpusnap drives itself."""
        return self.backend if self.engine is Engine.DRIVER else None

    def require_backend(self) -> None:
        """Raise NoBackendError where the backend cannot do it this way."""
        if self.backend is not None:
            driven = self.engine is Engine.DRIVER
            self.backend.require(Capability.CHECKPOINT if driven else Capability.CRIU_PLUGIN)

    def criu_options(self) -> CriuOptions:
        """What the backend asks of CRIU."""
        if self.backend is None:
            return CriuOptions()
        return self.backend.criu_options(CriuPhase.DUMP, self.engine)

    def estimate_bytes(self) -> int:
        """About how many bytes the snapshot will hold."""
        estimated = estimate_bytes(self.target, self.claimed, packed=self.packed)
        return estimated + self.needs.deleted_bytes

    def request(
        self, images: Path, work: Path, criu_options: CriuOptions | None = None
    ) -> DumpRequest:
        """What CRIU is asked for; with other options than the backend's where given."""
        chosen = self.needs.options
        return DumpRequest(
            pid=inside_pid(self.target.root.pid),
            images=images,
            work=work,
            leave_running=self.options.leave_running,
            shell_job=chosen.shell_job,
            tcp_established=chosen.tcp_established,
            file_locks=chosen.file_locks,
            link_remap=chosen.link_remap,
            ext_unix_sockets=chosen.ext_unix_sockets,
            own_network=self.needs.own_network,
            ghost_limit=chosen.ghost_limit,
            options=criu_options or self.criu_options(),
            timeout_us=self.options.timeout_us,
        )


def prepare(pid: int, options: CheckpointOptions, plugins: Plugins) -> Prepared:
    """Look at a target and the machine, changing nothing; error findings are not raised."""
    force = check_known_codes(options.force, plugins)
    target = find_target(pid)
    refuse(tuple(check_privileges()))
    search = search_criu()
    machine = tuple(check_criu(search))
    claimed = choose_backend(target, plugins, options.backend)
    found = inspect_target(
        target, claimed, Operation.CHECKPOINT, criu=search.criu, wishes=options.wishes
    )
    engine = _choose_engine(options.engine, claimed.backend)
    packed = options.regions and claimed.backend is not None and claimed.backend.has_bulk_images
    if options.saving.incremental and engine is Engine.CRIU_PLUGIN and not packed:
        raise _not_incremental()
    findings = (*machine, *check_engine(target, engine), *found.findings)
    if options.thp and claimed.backend is not None:
        findings = (*findings, *check_switch())
    wanted = options.regions and engine is Engine.DRIVER and search.criu is not None
    reason = guard_works(search.criu) if wanted and search.criu is not None else None
    if reason is not None:
        findings = (*findings, _unguarded(reason))
    return Prepared(
        target=target,
        claimed=claimed,
        findings=downgrade(findings, force),
        criu=search.criu,
        options=options,
        engine=engine,
        needs=found.needs,
        guarded=wanted and reason is None,
        packed=packed,
    )


def _choose_engine(wanted: Engine | None, backend: Backend | None) -> Engine:
    """What the user named, else gpusnap itself where the backend offers that."""
    if wanted is not None:
        return wanted
    only_in_criu = (
        backend is not None
        and backend.offers(Capability.CRIU_PLUGIN)
        and not backend.offers(Capability.CHECKPOINT)
    )
    return Engine.CRIU_PLUGIN if only_in_criu else Engine.DRIVER


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
        GpusnapError: The process, the backend or the parent that was named cannot be used at
            all. Error findings are in the plan, not raised.
    """
    prepared = prepare(pid, options, plugins or default_plugins())
    path = planned_path(output_path, repository, process_name=prepared.target.root.name)
    command: tuple[str, ...] = ()
    if prepared.criu is not None:
        command = equivalent_command(prepared.criu, prepared.request(path / "criu", path))
        command = entering(prepared.target.root.pid, command)
    with inheritance(prepared.target, options.search(path.parent, repository)) as inherited:
        unusable = () if inherited.finding is None else (inherited.finding,)
    return CheckpointPlan(
        target=prepared.target,
        backend=prepared.backend.name if prepared.backend else None,
        claimed=prepared.claimed.pids,
        engine=prepared.engine,
        findings=(*prepared.findings, *unusable),
        snapshot_path=str(path),
        estimated_bytes=prepared.estimate_bytes(),
        criu_command=command,
        chosen=prepared.needs.choices,
        incremental=options.saving.incremental,
        parent=str(inherited.parent.path) if inherited.parent else None,
    )
