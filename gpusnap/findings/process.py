"""What a process is, rather than has: traced, sandboxed, in namespaces of its own."""

import os
from collections.abc import Iterator

from gpusnap.findings.view import Seen, View
from gpusnap.target import read_status
from gpusnap.types import Finding, Severity

_WHOLE_TREE = ("pid", "uts", "ipc", "user", "cgroup", "time", "time_for_children")
"""Namespaces that CRIU wants to be the same in a whole tree; mounts and networks may differ."""
_OF_A_RESTORE = {"time", "time_for_children"}
"""CRIU gives every restored tree its own clocks."""
_FREE = "0"


def check_processes(view: View) -> Iterator[Finding]:
    """Look at every process by itself and beside the root of its tree."""
    for pid in view.ended:
        yield Finding(
            code="target-changing",
            severity=Severity.WARNING,
            text=f"Process {pid} ended during the check",
            pid=pid,
        )
    for seen in view.seen:
        yield from _tracer(seen)
        yield from _nested(seen, view)
    yield from _namespaces(view)
    yield from _sandbox(view)


def _tracer(seen: Seen) -> Iterator[Finding]:
    tracer = int(seen.status.get("TracerPid", _FREE))
    if tracer:
        yield Finding(
            code="target-traced",
            severity=Severity.ERROR,
            text=f"Process {seen.pid} is being traced by process {tracer}, a debugger perhaps",
            cure="Detach it first: CRIU needs to trace the process itself",
            pid=seen.pid,
        )


def _nested(seen: Seen, view: View) -> Iterator[Finding]:
    of_root, own = view.target.root.namespaces, seen.process.namespaces
    kinds = [kind for kind in _WHOLE_TREE if kind in own and own[kind] != of_root.get(kind)]
    if kinds:
        yield Finding(
            code="namespace-nested",
            severity=Severity.ERROR,
            text=f"{seen.label} has another {kinds[0]} namespace than process "
            f"{view.target.root.pid}, the root of its tree",
            cure="Checkpoint that process alone, or run the tree without a nested namespace",
            pid=seen.pid,
        )


def _namespaces(view: View) -> Iterator[Finding]:
    root = view.target.root
    kinds = {kind for kind, link in root.namespaces.items() if link != own_namespace(kind)}
    kinds -= _OF_A_RESTORE
    if not kinds or "pid" in kinds:  # PIDs have a check of their own
        return
    # With these CRIU saves mounts with what they hold, and the kernel may refuse the restore
    hard = bool({"mnt", "user"} & kinds)
    yield Finding(
        code="namespace-other",
        severity=Severity.WARNING if hard else Severity.INFO,
        text=f"Process {root.pid} ({root.name}) has namespaces other than gpusnap's "
        f"({', '.join(sorted(kinds))}), "
        + ("as in a container, and CRIU may fail on them" if hard else "which are saved with it"),
        cure="Run gpusnap inside that container" if hard else None,
        pid=root.pid,
    )


def own_namespace(kind: str) -> str:
    """The namespace of a kind that gpusnap itself is in."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


def _sandbox(view: View) -> Iterator[Finding]:
    """Seccomp filters are saved, if only the kernel lets gpusnap suspend them."""
    filtered = [seen for seen in view.seen if seen.status.get("Seccomp", _FREE) != _FREE]
    if not filtered:
        return
    seen = filtered[0]
    if read_status("self").get("Seccomp", _FREE) != _FREE:
        yield Finding(
            code="sandbox",
            severity=Severity.ERROR,
            text=f"{seen.label} has a seccomp filter, which the kernel lets nobody suspend who "
            "has one, as gpusnap has here",
            cure="Run gpusnap outside of the container, or start that with seccomp=unconfined",
            pid=seen.pid,
        )
    else:
        yield Finding(
            code="seccomp",
            severity=Severity.INFO,
            text=f"{seen.label} has a seccomp filter, which is saved with it",
            pid=seen.pid,
        )
