"""Looks for what would make an operation fail, before anything is touched."""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from gpusnap.arguments import check_pid
from gpusnap.criu import Search, search_criu
from gpusnap.errors import (
    NoBackendError,
    NotFoundError,
    UsageError,
)
from gpusnap.plugins import Backend, Plugins, default_plugins
from gpusnap.target import find_target, read_maps
from gpusnap.types import (
    Claim,
    Device,
    DeviceMap,
    DeviceProcess,
    DeviceUse,
    Finding,
    Operation,
    Process,
    Severity,
    Target,
)

_NEEDED_CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_CHECKPOINT_RESTORE": 40}
_DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


class Claimed(msgspec.Struct, frozen=True):
    """Which backend is responsible for a target; both None where it has no device state."""

    backend: Backend | None
    claim: Claim | None

    @property
    def pids(self) -> tuple[int, ...]:
        """PIDs with device state."""
        return self.claim.pids if self.claim is not None else ()


def choose_backend(target: Target, plugins: Plugins, name: str | None = None) -> Claimed:
    """Find the backend that is responsible for a target.

    Args:
        target: The process tree.
        plugins: Where to look.
        name: A backend to ask alone, or None to ask all that are usable.

    Raises:
        NoBackendError: The named backend does not exist or cannot work here.
        UsageError: Two backends claim the target and none was named.
    """
    backends = (_named(plugins, name),) if name else plugins.usable()
    claims = [(backend, backend.claim(target)) for backend in backends]
    claims = [(backend, claim) for backend, claim in claims if claim.pids]
    if len(claims) > 1:
        names = " and ".join(backend.name for backend, _ in claims)
        msg = f"Process {target.root.pid} has state in the devices of {names}"
        raise UsageError(msg, cure="Name one with --backend")
    return Claimed(*claims[0]) if claims else Claimed(None, None)


def _named(plugins: Plugins, name: str) -> Backend:
    backend = plugins.backend(name)
    probe = backend.probe()
    if not probe.usable:
        msg = f"Backend {name} cannot work here: {'; '.join(probe.reasons)}"
        raise NoBackendError(msg, cure="See gpusnap backends")
    return backend


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def check_privileges() -> Iterator[Finding]:
    """Name the capabilities that are missing to freeze, dump and restore processes."""
    mask = _effective_capabilities()
    missing = [name for name, bit in _NEEDED_CAPABILITIES.items() if not mask >> bit & 1]
    if missing:
        yield Finding(
            code="privilege",
            severity=Severity.ERROR,
            text=f"gpusnap lacks {', '.join(missing)} to freeze, save and restore processes",
            cure="Run it as root, or give it these capabilities",
        )


def check_criu(search: Search) -> Iterator[Finding]:
    """Say which CRIU is used, and why others were passed over."""
    for passed in search.passed:
        yield Finding(
            code="criu-passed-over",
            severity=Severity.WARNING if search.criu is None else Severity.INFO,
            text=f"The CRIU at {passed.path} is not used: {passed.reason}",
        )
    if search.criu is None:
        yield Finding(
            code="criu-missing",
            severity=Severity.ERROR,
            text="No CRIU that works was found",
            cure="Run gpusnap setup-criu, or point GPUSNAP_CRIU at one",
        )
        return
    yield Finding(
        code="criu-used",
        severity=Severity.INFO,
        text=f"CRIU {search.criu.version_text} at {search.criu.path} is used",
    )


def _tracer(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith("TracerPid:"):
            return int(line.split()[1])
    return 0


def _check_process(process: Process, claimed: Collection[int]) -> Iterator[Finding]:
    tracer = _tracer(process.pid)
    if tracer:
        yield Finding(
            code="target-traced",
            severity=Severity.ERROR,
            text=f"Process {process.pid} is being traced by process {tracer}, a debugger perhaps",
            cure="Detach it first: CRIU needs to trace the process itself",
            pid=process.pid,
        )
    if process.pid not in claimed:
        yield from _check_unclaimed(process)


def _check_unclaimed(process: Process) -> Iterator[Finding]:
    paths = {mapping.path for mapping in read_maps(process.pid)}
    devices = sorted(path for path in paths if path.startswith(_DEVICE_FILES))
    if devices:
        yield Finding(
            code="device-unclaimed",
            severity=Severity.ERROR,
            text=f"Process {process.pid} ({process.name}) maps {devices[0]}, but no usable "
            "backend claims its device state",
            cure="See gpusnap backends; a forked worker process may have to end first",
            pid=process.pid,
        )


def check_target(target: Target, claimed: Collection[int]) -> Iterator[Finding]:
    """Look at every process of a tree."""
    for process in target.processes:
        try:
            yield from _check_process(process, claimed)
        except (FileNotFoundError, ProcessLookupError, NotFoundError):
            yield Finding(
                code="target-changing",
                severity=Severity.WARNING,
                text=f"Process {process.pid} ended during the check",
                pid=process.pid,
            )


def needs_shell_job(target: Target) -> bool:
    """True where the tree belongs to a session led from outside, as a shell's jobs do."""
    return target.root.session_id not in target.pids


def _anonymous(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def estimate_bytes(target: Target, claimed: Claimed) -> int:
    """Estimate the bytes a dump will hold: anonymous memory plus device memory."""
    host = 0
    for process in target.processes:
        try:
            host += _anonymous(process.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    if claimed.backend is None:
        return host
    on_devices = claimed.backend.processes()
    return host + sum(use.memory or 0 for use in on_devices if use.pid in claimed.pids)


def check_space(needed: int, free: int, where: str) -> Iterator[Finding]:
    """Compare a dump's estimated bytes with what is free."""
    if needed > free:
        yield Finding(
            code="repository-space",
            severity=Severity.ERROR,
            text=f"The snapshot needs about {needed} bytes, {where} has {free} bytes free",
            cure="Free space there, or name another repository with --repo",
        )


def check_device_memory(
    uses: Collection[DeviceUse], device_map: DeviceMap, present: Collection[Device]
) -> Iterator[Finding]:
    """Refuse too little free memory: a driver that runs out in a restore may be stuck for good.

    Args:
        uses: What the processes held, by the devices they were on.
        device_map: Which device replaces which.
        present: The devices at hand.
    """
    needed: Counter[str] = Counter()
    replacement = dict(device_map.pairs)
    for use in uses:
        needed[replacement.get(use.device_uuid, use.device_uuid)] += use.memory
    for device in present:
        want = needed[device.uuid]
        if device.memory_free is not None and want > device.memory_free:
            yield Finding(
                code="device-memory-free",
                severity=Severity.ERROR,
                text=f"Device {device.index} ({device.model}) has {device.memory_free} bytes "
                f"free, {want} bytes are needed there",
                cure="End or suspend what uses that device (gpusnap ps)",
            )


def downgrade(findings: Collection[Finding], force: Collection[str]) -> tuple[Finding, ...]:
    """Turn errors whose code the user forced into warnings."""
    return tuple(
        msgspec.structs.replace(finding, severity=Severity.WARNING)
        if finding.code in force and finding.severity is Severity.ERROR
        else finding
        for finding in findings
    )


def preflight(
    pid: int | None = None,
    *,
    backend: str | None = None,
    operation: Operation = Operation.CHECKPOINT,
    plugins: Plugins | None = None,
) -> tuple[Finding, ...]:
    """Check this machine, and a process tree if one is named; changes nothing.

    Args:
        pid: Root of the tree, or None for the machine alone.
        backend: Backend to use, or None to ask all.
        operation: What is planned.
        plugins: The plugins to use; the installed ones by default.

    Returns:
        Findings, those of the machine first.

    Raises:
        NotFoundError: No process has that PID.
        TargetError: The process can never be checkpointed (a zombie, gpusnap itself).
        NoBackendError: The named backend cannot work here.
    """
    machine = (*check_privileges(), *check_criu(search_criu()))
    if pid is None:
        return machine
    plugins = plugins or default_plugins()
    target = find_target(check_pid(pid))
    claimed = choose_backend(target, plugins, backend)
    return (*machine, *inspect_target(target, claimed, operation))


def inspect_target(target: Target, claimed: Claimed, operation: Operation) -> tuple[Finding, ...]:
    """Ask host and backend about a target."""
    findings = tuple(check_target(target, claimed.pids))
    if claimed.backend is None:
        return findings
    return findings + claimed.backend.preflight(target, claimed.pids, operation)


def devices(*, backend: str | None = None, plugins: Plugins | None = None) -> tuple[Device, ...]:
    """List the devices of this machine, of every usable backend or of the named one.

    Raises:
        NoBackendError: The named backend does not exist or cannot work here.
    """
    chosen = _chosen(plugins or default_plugins(), backend)
    return tuple(device for one in chosen for device in one.devices())


def processes(
    *, backend: str | None = None, plugins: Plugins | None = None
) -> tuple[DeviceProcess, ...]:
    """List the processes that use devices, of every usable backend or of the named one.

    Raises:
        NoBackendError: The named backend does not exist or cannot work here.
    """
    chosen = _chosen(plugins or default_plugins(), backend)
    return tuple(process for one in chosen for process in one.processes())


def _chosen(plugins: Plugins, name: str | None) -> tuple[Backend, ...]:
    return (_named(plugins, name),) if name else plugins.usable()
