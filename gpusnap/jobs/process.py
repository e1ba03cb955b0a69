"""The job's processes: its first one, how that ends, and what is left of the others."""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpusnap.ending import kill
from gpusnap.errors import NotFoundError
from gpusnap.jobs.record import RUN_VARIABLE
from gpusnap.nested import is_nested
from gpusnap.target import alive, identity, is_zombie, read_process
from gpusnap.types import Process, ProcessId

_PR_SET_CHILD_SUBREAPER = 36
_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info of linux/pidfd.h: mask, cgroup, eleven numbers, exit status."""
_PIDFD_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, ...)
_INFO_EXIT = 1 << 3
_EXIT_STATUS = 49
"""Position of the exit status in /proc/PID/stat, counted from the state."""
_STATUS_WAIT_S = 5.0
"""How long the parent of a process that ended may take to reap it."""
_LOOK_S = 0.01
_GONE_S = 30.0
"""How long a killed process may take to give its memory back."""


def become_subreaper() -> None:
    """Get the orphans of all processes below as children, restored ones among them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Job:
    """A job that runs, or has just ended.

    Args:
        root: Its first process, which is saved and gets the signals.
        init: The process whose end is the job's, where that is another one: the first of a PID
            namespace made for it.
    """

    def __init__(self, root: ProcessId, init: ProcessId | None = None) -> None:
        self.root = root
        self.last = init or root
        self._handle = os.pidfd_open(self.last.pid)
        self._code: int | None = None
        self._ended = False

    def close(self) -> None:
        """Hold it no longer."""
        os.close(self._handle)

    @property
    def handle(self) -> int:
        """A descriptor that becomes readable when the job ends."""
        return self._handle

    def ended(self) -> bool:
        """Whether it has ended; a child of this process is reaped then."""
        if not self._ended:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            if poll.poll(0):
                self._code = self._reap()
                self._ended = True
        return self._ended

    @property
    def code(self) -> int | None:
        """What it ended with, 128+N for signal N; None where nobody can tell."""
        return self._code

    def _reap(self) -> int | None:
        try:
            _, status = os.waitpid(self.last.pid, 0)
        except ChildProcessError:
            told = _status_of_stranger(self._handle, self.last)
            if told is None:
                return None
            status = told
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def end_rest(self) -> None:
        """End what is left in its namespace once its first process is gone."""
        if self.last != self.root and not alive(self.root):
            kill(self.last)

    def send(self, number: int, *, group: bool = False) -> None:
        """Send it a signal; one that has ended is no matter.

        Args:
            number: The signal.
            group: Whether its whole process group is meant, if it leads one.
        """
        with contextlib.suppress(ProcessLookupError):
            if not alive(self.root):
                return
            if group and os.getpgid(self.root.pid) == self.root.pid:
                os.killpg(self.root.pid, number)
            elif self.last == self.root:
                signal.pidfd_send_signal(self._handle, number)
            else:
                os.kill(self.root.pid, number)

    @property
    def beside(self) -> bool:
        """Whether it is in this process's group, so that it gets the keys of a terminal too."""
        with contextlib.suppress(ProcessLookupError):
            return os.getpgid(self.root.pid) == os.getpgrp()
        return False


def _status_of_stranger(handle: int, process: ProcessId) -> int | None:
    """The exit status of a process that is no child of this one.

    The kernel shows it as long as nobody has reaped the process, and from Linux 6.15 on to whoever
    holds a descriptor of it afterwards.
    """
    deadline = time.monotonic() + _STATUS_WAIT_S
    while time.monotonic() < deadline:
        status = _status_of_zombie(process.pid)
        if status is None:
            status = _status_of_descriptor(handle)
        if status is not None:
            return status
        if identity(process.pid) != process and _knows_nothing(handle):
            return None
        time.sleep(_LOOK_S)
    return None


def _status_of_zombie(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[_EXIT_STATUS]) if fields[0] in "ZX" else None


def _ask(handle: int) -> tuple[int, ...] | None:
    buffer = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(handle, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    return _INFO.unpack(buffer)


def _status_of_descriptor(handle: int) -> int | None:
    told = _ask(handle)
    return told[-1] if told is not None and told[0] & _INFO_EXIT else None


def _knows_nothing(handle: int) -> bool:
    return _ask(handle) is None


def reap_orphans(job: Job | None) -> None:
    """Reap children that ended, but for the job itself; nothing else may wait for a child now."""
    keep = job.last.pid if job is not None else None
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == keep:
                return
            os.waitpid(found.si_pid, os.WNOHANG)


def marked(folder: Path) -> tuple[ProcessId, ...]:
    """All processes here that have a run's folder in their environment, by PID.

    Those in PID namespaces of their own are copies of the job, unless they are known to be the job.
    """
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    wanted, me = os.fsencode(folder), os.getpid()
    mine = [pid for pid in pids if pid != me and _run_of(pid) == wanted and not is_nested(pid)]
    found = map(identity, mine)
    return tuple(each for each in found if each is not None)


def topmost(processes: Iterable[ProcessId]) -> ProcessId | None:
    """Of some processes the one that is below none of the others; the first of several."""
    known = {each.pid: each for each in processes}
    for pid, process in known.items():
        with contextlib.suppress(NotFoundError):
            if read_process(pid).parent_pid not in known:
                return process
    return None


def end_remains(folder: Path, saved: Iterable[Process]) -> tuple[int, ...]:
    """Kill what is left of a job whose first process is gone, so that its PIDs become free.

    Args:
        folder: The run's: processes that have it in their environment are the job's.
        saved: Processes of a snapshot: one that has the same PID, program and arguments is too,
            unless another run's folder is in its environment. Its start tells nothing: it may have
            been restored before.

    Returns:
        The PIDs of what was killed.
    """
    doomed = {*marked(folder), *_still_there(folder, saved)}
    for process in doomed:
        kill(process)
    for process in doomed:
        _await_gone(process)
    return tuple(sorted(process.pid for process in doomed))


def _still_there(folder: Path, saved: Iterable[Process]) -> Iterator[ProcessId]:
    for process in saved:
        with contextlib.suppress(NotFoundError):
            now = read_process(process.pid)
            same = (now.command, now.executable) == (process.command, process.executable)
            # In a container, the first PIDs are easily those of another run of the same program
            mine = _run_of(process.pid) in {None, os.fsencode(folder)}
            if same and mine and not is_nested(process.pid):
                yield now.id


def _run_of(pid: int) -> bytes | None:
    """The folder of the run that a process belongs to by its environment."""
    prefix = f"{RUN_VARIABLE}=".encode()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if line.startswith(prefix):
                return line.removeprefix(prefix)
    return None


def _await_gone(process: ProcessId) -> None:
    """Wait until its PID is free; where this process is its parent, that needs a hand."""
    deadline = time.monotonic() + _GONE_S
    while identity(process.pid) == process and time.monotonic() < deadline:
        if is_zombie(process.pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        time.sleep(_LOOK_S)
