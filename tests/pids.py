"""Processes by their numbers."""

import contextlib
import ctypes
import errno
import os
import signal
import time
from types import TracebackType
from typing import Self

from gpusnap.target import is_zombie

_REAPED_S = 60.0
_CLONE3 = 435
_FIELDS = 10  # of struct clone_args, up to set_tid_size; all of 64 bits

# Without a release of the interpreter's lock, which a child might never get again.
_C = ctypes.PyDLL(None, use_errno=True)


def kill(pid: int) -> None:
    """Kill a process, which may end by itself at this very moment."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _fork_as(pid: int) -> int:
    """Fork a child with just that PID, as CRIU does; 0 in the child, which is to replace itself.

    Later PIDs go on where they were: tests beside keep some of them free for their restores.
    """
    wanted = (ctypes.c_int * 1)(pid)
    arguments = (ctypes.c_uint64 * _FIELDS)()
    arguments[4] = signal.SIGCHLD
    arguments[8:10] = [ctypes.addressof(wanted), len(wanted)]
    made = int(_C.syscall(_CLONE3, arguments, ctypes.sizeof(arguments)))
    if made < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return made


class Stranger:
    """A child with a PID that one chooses, in a session of its own.

    It waits for whoever had the PID to be reaped.
    """

    def __init__(self, pid: int, *command: str) -> None:
        self.pid = pid
        self._status: int | None = None
        deadline = time.monotonic() + _REAPED_S
        while (made := self._try()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"PID {pid} is not free")
            time.sleep(0.005)
        if made == 0:
            _become(command or ("sleep", "600"))

    def _try(self) -> int | None:
        try:
            return _fork_as(self.pid)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            return None

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        if self._status is None and os.waitpid(self.pid, os.WNOHANG)[0]:
            self._status = 0
        return self._status

    def await_zombie(self) -> None:
        """Wait until it has ended; it is not reaped."""
        while not is_zombie(self.pid):
            time.sleep(0.005)

    def end(self) -> None:
        """Kill and reap it."""
        if self.poll() is None:
            kill(self.pid)
            self._status = os.waitpid(self.pid, 0)[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def _become(command: tuple[str, ...]) -> None:
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os.execvp(command[0], command)  # noqa: S606 - nothing else is to be done here
    finally:
        os._exit(127)
