"""Memory that CRIU cannot save."""

from collections.abc import Iterator

from gpusnap.criu import Criu
from gpusnap.findings.process import own_namespace
from gpusnap.findings.view import Seen, View
from gpusnap.native import MemoryFault, guard_page_among
from gpusnap.regions import MINIMUM_HOST
from gpusnap.target import Mapping
from gpusnap.types import Finding, Severity

_SYSTEM_V = "/SYSV"
_UNREADABLE = "/secretmem"
_GUARDED_SINCE = (4, 2, 0)
"""The CRIU that knows guard pages."""


def check_memory(view: View, criu: Criu | None) -> Iterator[Finding]:
    """Find mappings that make a dump fail."""
    shared_ipc = view.target.root.namespaces.get("ipc") == own_namespace("ipc")
    for seen in view.seen:
        if shared_ipc:
            yield from _system_v(seen)
        yield from _secret(seen)
        if criu is not None and criu.version < _GUARDED_SINCE:
            yield from _guard(seen, criu)


def _first(seen: Seen, prefix: str) -> Mapping | None:
    return next((each for each in seen.maps if each.path.startswith(prefix)), None)


def _system_v(seen: Seen) -> Iterator[Finding]:
    mapping = _first(seen, _SYSTEM_V)
    if mapping is not None:
        yield Finding(
            code="sysv-shm",
            severity=Severity.ERROR,
            text=f"{seen.label} has System V shared memory attached at {mapping.start:#x}, which "
            "belongs to the whole machine and is not saved with a process",
            cure="Start it in an IPC namespace of its own (unshare --ipc), or use POSIX shared "
            "memory instead",
            pid=seen.pid,
        )


def _secret(seen: Seen) -> Iterator[Finding]:
    mapping = _first(seen, _UNREADABLE)
    if mapping is not None:
        yield Finding(
            code="secret-memory",
            severity=Severity.ERROR,
            text=f"{seen.label} has secret memory (memfd_secret) at {mapping.start:#x}, which "
            "nobody else can read",
            cure="Let it do without, or boot with secretmem.enable=0",
            pid=seen.pid,
        )


def _guard(seen: Seen, criu: Criu) -> Iterator[Finding]:
    """Guard pages where CRIU saves the memory: larger mappings mostly go past it."""
    left = (each for each in seen.maps if each.length < MINIMUM_HOST or each.executable)
    ranges = ((each.start, each.end) for each in left if each.permissions.startswith("r"))
    try:
        start = guard_page_among(seen.pid, ranges)
    except MemoryFault:  # ended meanwhile
        return
    if start is not None:
        yield Finding(
            code="guard-pages",
            severity=Severity.ERROR,
            text=f"{seen.label} has guard pages (MADV_GUARD_INSTALL) in its memory at "
            f"{start:#x}, and CRIU {criu.version_text} cannot save such memory",
            cure="Name a CRIU 4.2 or newer in GPUSNAP_CRIU",
            pid=seen.pid,
        )
