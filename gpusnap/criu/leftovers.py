"""Processes that a CRIU which died in the middle leaves behind, found and ended.

A CRIU that ends by itself cleans up. One that is killed leaves stopped processes of its own
and, at a restore, a tree that waits for it for ever or runs on without its devices, and forks.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpusnap.ending import end_trees, wait_gone
from gpusnap.target import identity
from gpusnap.types import ProcessId

END_SECONDS = 30
"""How long the kernel may take to end what was killed: with much memory, it takes seconds."""


def end_session(session: int) -> tuple[ProcessId, ...]:
    """End every process of a session that CRIU led.

    Args:
        session: The PID of that CRIU; the kernel does not give it away while one is left.

    Returns:
        Those that were killed and are still there.
    """
    members = [process for process in _processes() if _session(process.pid) == session]
    return end_trees(members, END_SECONDS).left


class Tree:
    """The processes that a restore is to bring back.

    Args:
        pids: Their numbers. Whoever has one of them now was there before and is left alone.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._before = frozenset(self._present())

    def end(self) -> tuple[ProcessId, ...]:
        """End those that have come up since, with all that they have forked.

        Returns:
            Those that are still there.
        """
        return end_trees(self._made(), END_SECONDS).left

    def wait_gone(self) -> tuple[ProcessId, ...]:
        """Wait for those that CRIU has made and killed; returns those that are still there.

        None of them has run, so that none has forked.
        """
        return wait_gone(self._made(), END_SECONDS)

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
