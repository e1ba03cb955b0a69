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


class Tree:
    """The processes that a restore is to bring back.

    Args:
        pids: Their numbers. Whoever has one of them now was there before and is left alone.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._before = frozenset(self._present())

    def end(self) -> None:
        """End those that have come up since."""
        _end(self._made())

    def wait_gone(self) -> None:
        """Wait for those that CRIU has made and killed."""
        _wait_gone(self._made())

    def _made(self) -> list[ProcessId]:
        return [each for each in self._present() if each not in self._before]

    def _present(self) -> Iterator[ProcessId]:
        for pid in self._pids:
            if (found := identity(pid)) is not None:
                yield found


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
    _wait_gone(processes)


def _wait_gone(processes: list[ProcessId]) -> None:
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
