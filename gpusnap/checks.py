"""Looks for what would make an operation fail, before anything is touched."""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from gpusnap.arguments import check_pid
from gpusnap.criu import Criu, search_criu
from gpusnap.errors import (
    NoBackendError,
    TargetError,
    UsageError,
)
from gpusnap.findings import Inspected, Wishes, check_criu, check_privileges, inspect_tree
from gpusnap.nested import check_namespace
from gpusnap.plugins import Backend, Plugins, default_plugins
from gpusnap.target import find_target
from gpusnap.types import (
    Claim,
    Device,
    DeviceMap,
    DeviceProcess,
    DeviceUse,
    Finding,
    Operation,
    Severity,
    Target,
)

_NO_WISHES = Wishes()


class Claimed(msgspec.Struct, frozen=True):
    """Which backend is responsible for a target; both None where it has no device state."""

    backend: Backend | None
    claim: Claim | None

    @property
    def pids(self) -> tuple[int, ...]:
        """PIDs with device state."""
        return self.claim.pids if self.claim is not None else ()


def choose_backend(
    target: Target,
    plugins: Plugins,
    name: str | None = None,
    operation: Operation = Operation.CHECKPOINT,
) -> Claimed:
    """Find the backend that is responsible for a target.

    Args:
        target: The process tree.
        plugins: Where to look.
        name: The backend to use, or None for the one that claims the target.
        operation: What is planned. A resume takes no state away, so it is no matter what else
            the target has: a backend that is named is the only one asked.

    Raises:
        NoBackendError: The named backend does not exist or cannot work here.
        TargetError: The target has state in the devices of two vendors, and is not resumed.
        UsageError: Two backends claim the target and none was named.
    """
    named = _named(plugins, name) if name else None
    resumes = operation is Operation.RESUME
    asked = (named,) if named is not None and resumes else plugins.usable()
    claims = [(backend, backend.claim(target)) for backend in asked]
    claims = [(backend, claim) for backend, claim in claims if claim.pids]
    if not resumes:
        _refuse_two_vendors(target, claims)
    if named is not None:
        claims = [(backend, claim) for backend, claim in claims if backend.name == named.name]
    if len(claims) > 1:
        names = " and ".join(backend.name for backend, _ in claims)
        msg = f"Process {target.root.pid} has state in the devices of {names}"
        raise UsageError(msg, cure="Name one with --backend")
    return Claimed(*claims[0]) if claims else Claimed(None, None)


def _refuse_two_vendors(target: Target, claims: Collection[tuple[Backend, Claim]]) -> None:
    """No backend knows of another's devices: what it saved would lack their state."""
    vendors = {backend.info.vendor: claim.pids for backend, claim in claims}
    if len(vendors) > 1:
        told = " and ".join(
            f"{vendor} (process {', '.join(map(str, pids))})" for vendor, pids in vendors.items()
        )
        raise TargetError(
            f"The target of process {target.root.pid} ({target.root.name}) has state in the "
            f"devices of two vendors, {told}, and gpusnap can save those of one only",
            cure="Let the program save its own state, or have it use the devices of one vendor",
        )


def _named(plugins: Plugins, name: str) -> Backend:
    backend = plugins.backend(name)
    probe = backend.probe()
    if not probe.usable:
        msg = f"Backend {name} cannot work here: {'; '.join(probe.reasons)}"
        raise NoBackendError(msg, cure="See gpusnap backends")
    return backend


def _anonymous(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def estimate_bytes(target: Target, claimed: Claimed, *, packed: bool = False) -> int:
    """Estimate the bytes a dump takes: anonymous memory plus device memory.

    Args:
        target: What is to be saved.
        claimed: Whose devices it uses.
        packed: Whether images of device memory are packed, and are there twice until then.
    """
    host = 0
    for process in target.processes:
        try:
            host += _anonymous(process.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    if claimed.backend is None:
        return host
    on_devices = claimed.backend.processes()
    device = sum(use.memory or 0 for use in on_devices if use.pid in claimed.pids)
    return host + device * (2 if packed else 1)


def check_space(needed: int, free: int, where: str, *, parent: bool = False) -> Iterator[Finding]:
    """Compare a dump's estimated bytes with what is free.

    Args:
        needed: Bytes of all that is saved.
        free: Bytes that can be written.
        where: The repository.
        parent: Whether a parent has some of it already; nobody knows beforehand how much.
    """
    if needed > free:
        less = ", less what its parent has" if parent else ""
        yield Finding(
            code="repository-space",
            severity=Severity.WARNING if parent else Severity.ERROR,
            text=f"The snapshot needs about {needed} bytes{less}; {where} has {free} bytes free",
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
    debugger: bool = False,
    plugins: Plugins | None = None,
) -> tuple[Finding, ...]:
    """Check this machine, and a process tree if one is named; changes nothing.

    Args:
        pid: Root of the tree, or None for the machine alone.
        backend: Backend to use, or None to ask all.
        operation: What is planned.
        debugger: Have the vendor's debugger look into the processes, which stops them meanwhile.
        plugins: The plugins to use; the installed ones by default.

    Returns:
        Findings, those of the machine first.

    Raises:
        NotFoundError: No process has that PID.
        TargetError: The process can never be checkpointed (a zombie, gpusnap itself).
        NoBackendError: The named backend cannot work here.
    """
    search = search_criu()
    machine = (*check_privileges(), *check_criu(search))
    if pid is None:
        return machine
    plugins = plugins or default_plugins()
    target = find_target(check_pid(pid))
    claimed = choose_backend(target, plugins, backend, operation)
    found = inspect_target(target, claimed, operation, criu=search.criu)
    seen = _look_into(target, claimed) if debugger else ()
    return (*machine, *found.findings, *seen)


def _look_into(target: Target, claimed: Claimed) -> tuple[Finding, ...]:
    if claimed.backend is None:
        msg = f"Process {target.root.pid} holds no device state for a debugger to look into"
        raise UsageError(msg, cure="Leave --rocgdb out")
    return claimed.backend.diagnose(target, claimed.pids)


def inspect_target(
    target: Target,
    claimed: Claimed,
    operation: Operation,
    *,
    criu: Criu | None = None,
    wishes: Wishes = _NO_WISHES,
) -> Inspected:
    """Ask host and backend about a target.

    Args:
        target: The tree.
        claimed: Who is responsible for its devices.
        operation: What is planned; only a checkpoint has to suit CRIU.
        criu: The CRIU that is used, None where there is none.
        wishes: What the user said of CRIU's options.
    """
    found = Inspected()
    if operation is Operation.CHECKPOINT:
        found = inspect_tree(target, claimed.claim, criu, wishes)
        found = Inspected((*check_namespace(target), *found.findings), found.needs)
    if claimed.backend is None:
        return found
    theirs = claimed.backend.preflight(target, claimed.pids, operation)
    return Inspected((*found.findings, *theirs), found.needs)


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
