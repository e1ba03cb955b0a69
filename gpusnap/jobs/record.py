"""The folder of a run and its ``run.json``: what was asked for, and how far it has come.

::

    run.json            the run; written by whoever supervises it
    supervisor.lock     held as long as a gpusnap supervises the run
    lock                held while a snapshot of the run is made
    control             socket at which the job asks for snapshots that it cannot make itself
    snapshots.json      the run's snapshots; written by whoever makes one
    stdout, stderr      what the job has written, where that is no terminal

A job finds its folder in the environment variable ``GPUSNAP_RUN``.
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from gpusnap.errors import (
    BusyError,
    GpusnapError,
    IntegrityError,
    NotFoundError,
    PrivilegeError,
    UsageError,
)
from gpusnap.folders import data_directory
from gpusnap.types import ProcessId

RUN_VARIABLE = "GPUSNAP_RUN"
"""Environment variable that names a job's run folder to the job."""

EX_TEMPFAIL = 75
"""The exit code of sysexits.h for what may go well another time."""

_RUN, _SUPERVISOR_LOCK, _LOCK = "run.json", "supervisor.lock", "lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_CURE = "Remove its folder, where no snapshots are, or choose another name"
_T = TypeVar("_T")


class RunState(StrEnum):
    """How far a run has come."""

    RUNNING = "running"
    """The job runs, or was interrupted by what nobody foresaw."""
    SAVED = "saved"
    """The job was saved and ended, because a signal had asked for it: it can go on."""
    ENDED = "ended"
    """The job has ended by itself, with ``exit_code``."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; the fields are named as the options of ``gpusnap run``.

    Attributes:
        every_us: Time between snapshots in microseconds; None for none by the clock.
        every_steps: Calls of :func:`gpusnap.step` between snapshots that the job makes of itself.
        on_ecc: So many new uncorrected memory errors, or pages or rows that go bad, count as a
            fault of a device.
        on_temperature: Degrees Celsius from which on a device counts as faulty.
        on_signal: Name of the signal, such as ``TERM``, at which the job is saved and ended.
        grace_us: How long it may take from that signal to the end.
        resume_code: What gpusnap exits with when it could save the job in that time.
        restart: How often in a row a job that crashed is brought back.
        restart_delay_us: How long the first time waits; each further one takes twice as long.
        move_on_fault: Bring the job back on another device where its own has a fault.
        bound_loss_us: Warn where more work than that could be lost.
        keep_last: As :class:`gpusnap.repository.RetentionPolicy` has it, as the next ones.
        incremental: Store only what the run's snapshots do not have; None for where that can be.
        ext_unix_sk: As ``external_unix_sockets`` of a checkpoint.
        tag: Tags of all snapshots of the run.
    """

    every_us: int | None = None
    every_steps: int | None = None
    on_ecc: int | None = None
    on_temperature: int | None = None
    on_signal: str | None = None
    grace_us: int = 30_000_000
    resume_code: int = EX_TEMPFAIL
    restart: int = 0
    restart_delay_us: int = 1_000_000
    move_on_fault: bool = False
    bound_loss_us: int | None = None
    keep_last: int = 0
    keep_hourly: int = 0
    keep_daily: int = 0
    keep_weekly: int = 0
    keep_monthly: int = 0
    keep_within: str | None = None
    keep_tag: tuple[str, ...] = ()
    incremental: bool | None = None
    compress: str = "auto"
    parallel_workers: int | None = None
    memory_budget: int | None = None
    backend: str | None = None
    timeout_us: int = 30 * 60 * 1_000_000
    lock_timeout_us: int = 10 * 1_000_000
    tcp_established: bool = False
    file_locks: bool | None = None
    ext_unix_sk: bool | None = None
    link_remap: bool | None = None
    thp: bool = False
    force: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``run.json``.

    Attributes:
        command: What is run; empty for a job that gpusnap did not start.
        directory: In which folder.
        repository: Absolute path of the repository that holds the snapshots.
        root: The job's first process; None before it was started.
        init: The first process of the PID namespace that the job was restored into, with which
            all of it ends; None for a job that has its old PIDs.
        boot_id: The boot of which ``root`` and ``init`` are processes.
        restarts: How often the job was brought back so far.
        exit_code: What the job ended with, 128+N for signal N; None while it has not ended, and
            where nobody could know.
    """

    name: str
    command: tuple[str, ...] = ()
    directory: str
    repository: str
    options: RunOptions = RunOptions()
    state: RunState = RunState.RUNNING
    root: ProcessId | None = None
    init: ProcessId | None = None
    boot_id: str
    restarts: int = 0
    exit_code: int | None = None


def check_name(name: str) -> str:
    """The name itself.

    Raises:
        UsageError: No run may have it.
    """
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name[:100]!r} cannot be the name of a run",
            cure="Use up to 100 letters, digits, '.', '_' and '-', starting with a letter or digit",
        )
    return name


def runs_directory() -> Path:
    """The folder that holds the folders of all runs."""
    return data_directory() / "runs"


def run_folder(name: str) -> Path:
    """The folder of a run, which need not exist."""
    return runs_directory() / check_name(name)


def boot_id() -> str:
    """What tells this boot of this machine from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_run(folder: Path) -> Run:
    """Read the run of a folder.

    Raises:
        NotFoundError: There is none.
        IntegrityError: It is damaged, or another run's, whose snapshots must not be pruned.
    """
    found = read_file(folder / _RUN, Run)
    if found is None:
        raise NotFoundError(f"There is no run in {folder}", cure="Give the command to run")
    if found.name != folder.name:
        raise IntegrityError(f"{folder / _RUN} is that of the run {found.name}", cure=_CURE)
    return found


def write_run(folder: Path, run: Run) -> None:
    """Write the run of a folder, which is made if need be.

    Raises:
        GpusnapError: The folder cannot be written to.
    """
    write_file(folder / _RUN, run)


def read_file(path: Path, kind: type[_T]) -> _T | None:
    """Read a struct; None where there is none.

    Raises:
        IntegrityError: It is damaged.
        GpusnapError: It cannot be read.
    """
    try:
        return msgspec.convert(json.loads(path.read_bytes()), kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GpusnapError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise IntegrityError(f"{path} cannot be understood: {error}", cure=_CURE) from None


def write_file(path: Path, value: msgspec.Struct) -> None:
    """Write a struct, down to the disk, so that a reader sees the old one or the new one.

    Raises:
        GpusnapError: It cannot be written.
    """
    draft = path.with_suffix(".new")
    with writing(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with draft.open("wb") as file:
            # Not msgspec's: an argument or a path may hold bytes that are no text
            file.write(json.dumps(msgspec.to_builtins(value), indent=2).encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn the disk's refusals into one sentence.

    Raises:
        PrivilegeError: The folder is another user's.
        GpusnapError: The disk is full, or refuses for another reason.
    """
    try:
        yield
    except OSError as error:
        msg = f"The run folder {folder} cannot be written to: {error.strerror}"
        if isinstance(error, PermissionError):
            raise PrivilegeError(msg, cure="Run as its owner, or set GPUSNAP_DATA_DIR") from None
        raise GpusnapError(msg, cure="Free space there, or set GPUSNAP_DATA_DIR") from None


@contextlib.contextmanager
def supervising(folder: Path) -> Iterator[None]:
    """Be the one gpusnap that supervises a run.

    Raises:
        BusyError: Another one does.
    """
    path = folder / _SUPERVISOR_LOCK
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = _open(path)
    try:
        _lock_at_once(descriptor, path)
        try:
            yield
        finally:
            _forget_unless_begun(folder)
    finally:
        os.close(descriptor)


def _lock_at_once(descriptor: int, path: Path) -> None:
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it may have removed the folder of a run that never began
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return
    msg = f"Another gpusnap supervises the run {path.parent.name}"
    raise BusyError(msg, cure="Choose another --name, or end that one")


def _forget_unless_begun(folder: Path) -> None:
    """Leave no folder behind where there was no such run, and none was begun."""
    with contextlib.suppress(OSError):
        if os.listdir(folder) == [_SUPERVISOR_LOCK]:
            (folder / _SUPERVISOR_LOCK).unlink()
            folder.rmdir()


@contextlib.contextmanager
def making_snapshot(folder: Path) -> Iterator[None]:
    """Be the only one who makes or restores a snapshot of a run; waits for others."""
    with writing(folder):
        descriptor = _open(folder / _LOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
