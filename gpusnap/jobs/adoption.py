"""Restored trees as children of this process: it sees their ends, and they end with it."""

import contextlib
import ctypes
import os
import select
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from gpusnap.criu import Leash
from gpusnap.ending import kill, wait_gone
from gpusnap.errors import GpusnapError
from gpusnap.jobs.process import Job
from gpusnap.plugins import Plugins
from gpusnap.restore import RestoredTarget, RestoreOptions, run_restore
from gpusnap.target import alive, identity

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_END_S = 30.0
"""How long the kernel may take to end processes, which may have much memory to give back."""


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Have what is restored in the block become this process's children, as CRIU ends.

    Raises:
        GpusnapError: The kernel does not allow it.
    """
    prctl = ctypes.CDLL(None).prctl
    before = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise GpusnapError("The kernel does not let gpusnap adopt what it restores")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def continue_snapshot(path: Path, options: RestoreOptions, plugins: Plugins) -> "Continuation":
    """Restore a snapshot to be adopted.

    With new PIDs the tree ends with this process, however that ends.

    Args:
        path: The snapshot's folder.
        options: How; the leash is added.
        plugins: The plugins to use.

    Raises:
        GpusnapError: It could not be restored, or somebody else has reaped it.
    """
    with contextlib.ExitStack() as undo:
        leash = Leash()
        undo.callback(leash.close)
        options = msgspec.structs.replace(options, leash=leash)
        target = run_restore(path, options=options, plugins=plugins)
        found = Continuation(target, leash)
        undo.pop_all()
    return found


class Continuation:
    """A restored tree that was adopted; ended with the block where it has not ended by itself.

    Attributes:
        target: What was restored.
    """

    def __init__(self, target: RestoredTarget, leash: Leash) -> None:
        self.target = target
        self._leash = leash
        first = identity(target.init_pid or target.root_pid)
        if first is None:
            raise GpusnapError("Somebody else has reaped what gpusnap restored")
        self._job = Job(first)

    @property
    def exit_code(self) -> int | None:
        """The root's exit code, 128 + N where signal N ended it; None before its end."""
        return self._job.code

    def fileno(self) -> int:
        """What becomes readable at its end."""
        return self._job.handle

    def wait(self, timeout_us: int | None = None) -> bool:
        """Wait for its end and take its exit code.

        Args:
            timeout_us: How long, in microseconds; None for ever.

        Returns:
            Whether it has ended.
        """
        poll = select.poll()
        poll.register(self._job.handle, select.POLLIN)
        if not poll.poll(None if timeout_us is None else timeout_us / 1000):
            return False
        if self._job.ended():
            self._end_rest()
        return True

    def send(self, number: int) -> None:
        """Send its root a signal, by its number."""
        self._job.send(number)

    def end(self) -> None:
        """Kill all of it, and wait until it is gone."""
        kill(self._job.last)
        self.wait(round(_END_S * 1e6))

    def _end_rest(self) -> None:
        """What is left of a tree without a namespace, which would end it: the root's children."""
        left = tuple(filter(alive, self.target.processes))
        for process in left:
            kill(process)
        wait_gone(left, _END_S)
        for process in self.target.processes:
            if identity(process.pid) == process:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self.wait(0):
                self.end()
        finally:
            self._job.close()
            self._leash.close()
