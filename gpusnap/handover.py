"""A restored tree in the place of a process: that process waits for it and ends as it does.

Whoever started the process, a shell or a scheduler, goes on seeing one job: its signals reach the
restored tree, and the exit code is that tree's.
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import active_children
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gpusnap.errors import GpusnapError, TargetError
from gpusnap.repository import Snapshot
from gpusnap.restore import RestoredTarget
from gpusnap.target import alive, identity

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
)
"""Signals that reach the restored tree's root."""

_SIGNAL_BASE = 128


def wait_for(target: RestoredTarget, pending: Callable[[], int | None] = lambda: None) -> int:
    """Wait for a restored tree's root; signals that come meanwhile are passed on to it.

    Args:
        target: What was restored, by this process as a subreaper.
        pending: Gives a signal that came before, to be passed on first. It is asked once signals
            are passed on: one that comes in between is not lost.

    Returns:
        Its exit code, 128+N where signal N ended it.

    Raises:
        TargetError: The root had ended before, while SIGCHLD was ignored, so that the kernel does
            not tell it.
    """
    root = target.init_pid or target.root_pid

    def pass_on(number: int, _frame: FrameType | None = None) -> None:
        with suppress(ProcessLookupError):
            os.kill(root, number)

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only what has a handler rings
    with _bell() as bell:
        # A program that blocked them handed that down
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*PASSED_ON, signal.SIGCHLD))
        if (late := pending()) is not None:
            pass_on(late)
        return _reap(root, bell)


@contextmanager
def _bell() -> Iterator[int]:
    """A descriptor that every signal makes readable, also one that comes just before the wait.

    Python runs no handler while a call of the kernel waits, unless the signal interrupts it.
    """
    hear, ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    try:
        yield hear
    finally:
        signal.set_wakeup_fd(before)
        os.close(hear)
        os.close(ring)


def _reap(root: int, bell: int) -> int:
    """Reap whatever ends, as an init does, until the root has."""
    heard = select.poll()
    heard.register(bell, select.POLLIN)
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            msg = f"Process {root} ended, and its exit code is not known"
            raise TargetError(msg, cure="Do not ignore SIGCHLD where gpusnap is started") from None
        if pid == root:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNAL_BASE - code
        if pid == 0:
            heard.poll()
            os.read(bell, select.PIPE_BUF)


def hand_over(snapshot: Snapshot, *, original_pids: bool | None = None) -> NoReturn:
    """Put a restored tree in the place of the calling process.

    The process keeps its PID but runs ``gpusnap restore --wait`` from here on: its memory, its
    devices' too, is free before the restore begins. What fails after that ends it with gpusnap's
    sentence and exit code.

    Args:
        snapshot: What to restore.
        original_pids: Whether the processes must get the PIDs back that they had; None for where
            none of these is taken, and else a PID namespace of their own.

    Raises:
        GpusnapError: Python cannot be started anew.
    """
    if original_pids is None:
        original_pids = not _taken(snapshot)
    command = _command(snapshot.path, new_pids=not original_pids)
    for child in active_children():  # workers of a process that is no more would wait for ever
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        os.execv(command[0], command)  # noqa: S606 - that is what it is for
    except OSError as error:
        raise GpusnapError(f"Python at {command[0]} cannot be started: {error.strerror}") from error


def _taken(snapshot: Snapshot) -> bool:
    """Whether a living process, such as the calling one, has a PID of the snapshot."""
    found = map(identity, snapshot.manifest.target.pids)
    return any(each is not None and alive(each) for each in found)


def _command(snapshot: Path, *, new_pids: bool) -> list[str]:
    # -P: a file of the current folder must not be taken for a module
    command = [sys.executable, "-P", "-m", "gpusnap", "restore", str(snapshot), "--wait"]
    return [*command, "--new-pids"] if new_pids else command
