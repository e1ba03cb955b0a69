"""PIDs that a restore needs: those of dying processes are waited for, others told."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpusnap.errors import NotFoundError
from gpusnap.target import identity, is_zombie, read_process
from gpusnap.types import Finding, Severity

WAIT_S = 30.0
"""How long a dying process is waited for: one with much memory takes seconds."""
_LOOK_S = 0.02


def check_pids(pids: Iterable[int], wait_s: float) -> Iterator[Finding]:
    """Name the PIDs that are taken.

    Args:
        pids: Those of a snapshot.
        wait_s: How long processes that are dying are waited for, all together.
    """
    deadline = time.monotonic() + wait_s
    for pid in pids:
        while _is_dying(pid) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        if identity(pid) is not None:
            yield _taken(pid)


def _is_dying(pid: int) -> bool:
    """True for a zombie, and for a process whose memory the kernel is taking apart."""
    if is_zombie(pid):
        return True
    try:
        return identity(pid) is not None and not Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return identity(pid) is not None


def _taken(pid: int) -> Finding:
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
