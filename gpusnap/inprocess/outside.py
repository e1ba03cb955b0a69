"""The helper as the program sees it: a gpusnap outside the program's tree.

No process can save a tree that it belongs to. The helper begins as a child, says who it will be,
forks, and is init's child from then on, without a descriptor in common with the program.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec

from gpusnap.errors import DeadlineError, GpusnapError, UsageError
from gpusnap.inprocess.messages import Reply, Request

POLL_S = 0.01
"""How long the program sleeps between two looks."""

_START_S = 120.0
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_DELETED = " (deleted)"


class Helper:
    """A helper that goes its own way.

    Looking whether it lives opens no file: the program may be frozen and saved at any instant.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._program = _program_of(pid)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._pid

    def alive(self) -> bool:
        """Whether it runs; a later process with its number is told by session and program."""
        try:
            leads = os.getsid(self._pid) == self._pid
        except ProcessLookupError:
            return False
        return leads and _program_of(self._pid) == self._program is not None

    def end(self) -> None:
        """Kill it and wait until it is gone; a target that it holds runs on."""
        while self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(POLL_S)


def _program_of(pid: int) -> str | None:
    """What a process runs; None for one that has ended, also if nobody has reaped it."""
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(_DELETED)
    except OSError:
        return None


def start(request: Request) -> Helper:
    """Start a helper, which begins once the program waits for its answer.

    Raises:
        UsageError: It could not be told what to do.
        GpusnapError: It cannot do its work, or could not be started.
    """
    try:
        data = msgspec.json.encode(request)
    except UnicodeEncodeError:
        raise UsageError("A path or name for the snapshot holds bytes that are no text") from None
    with _no_subreaper():
        reply = _call(["serve"], data, _START_S)
    if reply.failure is not None:
        raise reply.failure.error()
    return Helper(reply.helper)


def recover() -> str:
    """Put right what a helper that is gone has left of this program's devices.

    Returns:
        What became of it, in words; "" where nothing was left.

    Raises:
        GpusnapError: It cannot be put right.
    """
    # A CRIU that is still at work is waited for
    reply = _call(["recover", str(os.getpid())], b"", None)
    if reply.failure is not None:
        raise reply.failure.error()
    return reply.text


def _call(arguments: list[str], data: bytes, timeout_s: float | None) -> Reply:
    # Its working folder is no place to import from
    command = [sys.executable, "-P", "-m", "gpusnap.inprocess.helper", *arguments]
    try:
        done = subprocess.run(
            command,
            input=data,
            capture_output=True,
            check=False,
            timeout=timeout_s,
            start_new_session=True,
        )
    except OSError as error:
        raise _not_started(str(error)) from error
    except subprocess.TimeoutExpired:
        raise DeadlineError(f"gpusnap's helper did not start within {timeout_s:g} s") from None
    try:
        # Whatever is imported when a Python starts may have printed too
        return msgspec.json.decode(done.stdout.rpartition(b"\n")[2], type=Reply)
    except msgspec.DecodeError:
        lines = done.stderr.decode(errors="replace").split("\n")
        raise _not_started(next(filter(None, reversed(lines)), "it said nothing")) from None


def _not_started(reason: str) -> GpusnapError:
    return GpusnapError(
        f"gpusnap's helper could not be started: {reason}",
        cure=f"See that {sys.executable or 'the program'} can import gpusnap by itself",
    )


@contextlib.contextmanager
def _no_subreaper() -> Iterator[None]:
    """While the helper leaves: orphans would come back to a program that is their reaper."""
    prctl = ctypes.CDLL(None).prctl
    flag = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(flag))
    try:
        prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(0))
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(flag.value))
