"""Processes that a CRIU which died in the middle leaves behind, found and ended.

A CRIU that ends by itself cleans up. One that is killed leaves stopped processes of its own
and, at a restore, a tree that waits for it for ever or runs on without its devices.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gpusnap.target import alive, identity
from gpusnap.types import ProcessId

END_SECONDS = 5


def end_session(session: int) -> None:
    """End every process of a session that CRIU led.

    Args:
        session: The PID of that CRIU; the kernel does not give it away while one is left.
    """
    _end([process for process in _processes() if _session(process.pid) == session])


def end_tree(pids: Iterable[int], since: ProcessId) -> None:
    """End those of ``pids`` that CRIU has made.

    Args:
        pids: The processes a restore was to bring back.
        since: That CRIU: what is older than it was there before and is left alone.
    """
    found = [each for pid in pids if (each := identity(pid)) is not None]
    _end([each for each in found if each.start_ticks >= since.start_ticks])


def _processes() -> Iterator[ProcessId]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := identity(int(entry.name))) is not None:
            yield found


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _end(processes: list[ProcessId]) -> None:
    for process in processes:
        _kill(process)
    deadline = time.monotonic() + END_SECONDS
    while any(alive(each) for each in processes) and time.monotonic() < deadline:
        time.sleep(0.01)


def _kill(process: ProcessId) -> None:
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            # The handle stands for whoever has the PID now, so ask once more who that is
            if identity(process.pid) == process:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
