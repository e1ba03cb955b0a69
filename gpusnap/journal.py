"""What every running operation writes down, so that another gpusnap can clean up after it.

One journal a target, in the machine's state folder: it names the processes, the step and the
gpusnap that owns it. The owner holds a lock on it that the kernel drops with its life, so an
unlocked journal is one whose owner died, or one of a suspended target. A PID names a process in one
PID namespace only, so a gpusnap sees the journals of its own: others may share the folder.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Self

import msgspec

from gpusnap.errors import BusyError, GpusnapError, PrivilegeError
from gpusnap.events import Phase
from gpusnap.target import alive, identity, pid_namespace
from gpusnap.types import DeviceMap, DeviceUse, ProcessId


class Task(StrEnum):
    """The operations that keep a journal."""

    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    SUSPEND = "suspend"
    RESUME = "resume"
    PREEMPT = "preempt"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a journal.

    Attributes:
        owner: The gpusnap that runs the operation.
        processes: Processes of the target, the first of which names the journal; for a
            restore, those to come: PIDs to be taken, start ticks of the earliest instant they
            can have started. For one into new PIDs, the first process of their namespace.
        claimed: PIDs with device state.
        executables: For a restore, what the processes run, to tell them from strangers.
        made: For a restore, True once ``processes`` are the very processes that CRIU made.
        resumed: For a restore, True once these run, whatever becomes of gpusnap.
        criu: CRIU's process while it works.
        suspended: True once a suspended target is meant to stay so, in a preemption as long as
            its owner lives.
        guest: For a preemption, the process that has the devices meanwhile.
        uses: For a suspended target, the device memory it will need again.
        device_map: For a resume, onto which devices.
        path: Folder of the draft or of the snapshot.
        work: For a restore, the folder of its logs and of images for CRIU, which goes with it.
    """

    task: Task
    owner: ProcessId
    processes: tuple[ProcessId, ...]
    claimed: tuple[int, ...]
    backend: str | None
    phase: Phase = Phase.PREFLIGHT
    executables: tuple[str, ...] = ()
    made: bool = False
    resumed: bool = False
    criu: ProcessId | None = None
    suspended: bool = False
    guest: ProcessId | None = None
    uses: tuple[DeviceUse, ...] = ()
    device_map: DeviceMap = DeviceMap()
    path: str | None = None
    work: str | None = None

    def __post_init__(self) -> None:
        """Refuse what names nobody."""
        if not self.processes:
            raise ValueError("the journal names no process")

    @property
    def pids(self) -> frozenset[int]:
        """PIDs of the target."""
        return frozenset(process.pid for process in self.processes)

    @property
    def stays_suspended(self) -> bool:
        """Whether the target stays suspended when the owner is gone."""
        return self.suspended and self.task is not Task.PREEMPT


def state_directory() -> Path:
    """Folder of the journals: GPUSNAP_STATE_DIR, else /run/gpusnap, else the user's runtime."""
    if named := os.environ.get("GPUSNAP_STATE_DIR"):
        return Path(named)
    if os.geteuid() == 0:
        return Path("/run/gpusnap")
    return Path(os.environ.get("XDG_RUNTIME_DIR", f"/tmp/gpusnap-{os.geteuid()}")) / "gpusnap"  # noqa: S108 - checked for ownership below


def _prepare_directory() -> Path:
    folder = state_directory()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            msg = f"The state folder {folder} belongs to another user"
            raise PrivilegeError(msg, cure="Set GPUSNAP_STATE_DIR to a folder of your own")
    except OSError as error:
        msg = f"The state folder {folder} cannot be used: {error.strerror}"
        raise GpusnapError(msg, cure="Set GPUSNAP_STATE_DIR to a writable folder") from None
    return folder


@contextlib.contextmanager
def locked_directory() -> Iterator[Path]:
    """Hold the whole state folder, for the instant in which a journal is claimed.

    Raises:
        GpusnapError: The folder, or something in it, cannot be used.
    """
    folder = _prepare_directory()
    try:
        with (folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield folder
    except OSError as error:
        msg = f"The state folder {folder} cannot be used: {error.strerror}"
        raise GpusnapError(msg, cure="Set GPUSNAP_STATE_DIR to a writable folder") from None


def file_name(pid: int) -> str:
    """What the journal of a target is called, after its first process."""
    return f"{pid_namespace(os.getpid())}-{pid}.json"


def _journals(folder: Path) -> list[Path]:
    """Those of this PID namespace."""
    return sorted(folder.glob(f"{pid_namespace(os.getpid())}-*.json"))


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _read(path: Path) -> Entry | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Entry)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def _encode(entry: Entry) -> bytes:
    """As JSON, which cannot hold the bytes that are no text in a path: those are escaped."""
    path, work = (each and _escaped(each) for each in (entry.path, entry.work))
    programs = tuple(map(_escaped, entry.executables))
    return msgspec.json.encode(
        msgspec.structs.replace(entry, path=path, work=work, executables=programs)
    )


def _escaped(path: str) -> str:
    return path.encode(errors="backslashreplace").decode()


class Journal:
    """The journal of one operation, held by this process until it is closed."""

    def __init__(self, path: Path, lock: int, entry: Entry) -> None:
        self._path = path
        self._lock: int | None = lock
        self.entry = entry

    @classmethod
    def begin(cls, entry: Entry) -> Self:
        """Claim a target.

        Raises:
            BusyError: Another operation holds a process of it, or one was interrupted.
        """
        with locked_directory() as folder:
            for path in _journals(folder):
                _refuse_overlap(path, entry)
            path = folder / file_name(entry.processes[0].pid)
            lock = _try_lock(path.with_suffix(".lock"))
            if lock is None:
                msg = f"Another gpusnap holds process {entry.processes[0].pid}"
                raise BusyError(msg, cure="Wait for it to end")
            journal = cls(path, lock, entry)
            try:
                journal._write()
            except BaseException:
                path.unlink(missing_ok=True)
                path.with_suffix(".lock").unlink(missing_ok=True)
                os.close(lock)
                raise
            return journal

    @classmethod
    def take_over(cls, entry: Entry) -> Self | None:
        """Hold the journal of a dead owner or of a suspended target; None if it is in use."""
        with locked_directory() as folder:
            path = folder / file_name(entry.processes[0].pid)
            if _read(path) != entry:
                return None
            lock = _try_lock(path.with_suffix(".lock"))
            return None if lock is None else cls(path, lock, entry)

    def update(self, **changes: object) -> None:
        """Write changed fields of the entry."""
        self.entry = msgspec.structs.replace(self.entry, **changes)
        self._write()

    def criu_started(self, pid: int) -> None:
        """Note CRIU's process, which a recovery has to wait for."""
        self.update(criu=identity(pid))

    def _write(self) -> None:
        draft = self._path.with_suffix(".new")
        try:
            draft.write_bytes(_encode(self.entry))
            draft.replace(self._path)
        except OSError as error:
            msg = f"The journal {self._path} cannot be written: {error.strerror}"
            raise GpusnapError(msg, cure="Free space there or set GPUSNAP_STATE_DIR") from None

    def finish(self) -> None:
        """Remove the journal: nothing is left to clean up.

        Raises:
            GpusnapError: It cannot be removed; it is let go of all the same.
        """
        try:
            with locked_directory():
                self._path.unlink(missing_ok=True)
                self._path.with_suffix(".lock").unlink(missing_ok=True)
        finally:
            self.leave()

    def leave(self) -> None:
        """Let go of the journal and keep it, for ``gpusnap recover`` or ``resume``."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            os.close(lock)


def _refuse_overlap(path: Path, wanted: Entry) -> None:
    entry = _read(path)
    if entry is None and path.name in map(file_name, wanted.pids):
        msg = f"The journal {path} of an earlier operation cannot be read"
        raise BusyError(msg, cure="Run gpusnap recover, which says more")
    if entry is None or not entry.pids & wanted.pids:
        return
    lock = _try_lock(path.with_suffix(".lock"))
    pid = min(entry.pids)
    if lock is None:
        msg = f"Another gpusnap (PID {entry.owner.pid}) runs a {entry.task} of process {pid}"
        raise BusyError(msg, cure="Wait for it to end")
    os.close(lock)
    if entry.task is not Task.RESTORE and not any(map(alive, entry.processes)):
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
        return
    if entry.stays_suspended:
        msg = f"Process {pid} is suspended"
        raise BusyError(msg, cure=f"Run gpusnap resume {pid} first")
    msg = f"A {entry.task} of process {pid} was interrupted and waits to be recovered"
    raise BusyError(msg, cure="Run gpusnap recover first")


def unreadable() -> tuple[Path, ...]:
    """Journals that are damaged, so that nobody knows what they were of."""
    if not _exists():
        return ()
    with locked_directory() as folder:
        return tuple(path for path in _journals(folder) if _read(path) is None)


def _exists() -> bool:
    try:
        return state_directory().is_dir()
    except OSError as error:
        msg = f"The state folder {state_directory()} cannot be read: {error.strerror}"
        raise PrivilegeError(msg, cure="Run as its owner, or set GPUSNAP_STATE_DIR") from None


def entries() -> tuple[tuple[Entry, bool], ...]:
    """All journals, each with whether a living gpusnap holds it."""
    if not _exists():
        return ()
    found = []
    with locked_directory() as folder:
        for path in _journals(folder):
            entry = _read(path)
            if entry is None:
                continue
            lock = _try_lock(path.with_suffix(".lock"))
            if lock is not None:
                os.close(lock)
            found.append((entry, lock is None))
    return tuple(found)
