"""Starts a job's command as a shell would, with its output where a restore finds it again."""

import errno
import os
import signal
import stat
from pathlib import Path

import msgspec

from gpusnap.errors import GpusnapError
from gpusnap.jobs.outputs import STDERR, STDOUT
from gpusnap.jobs.record import RUN_VARIABLE, Run, writing
from gpusnap.target import identity
from gpusnap.types import ProcessId

_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores, and a job should not."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class CommandNotFoundError(GpusnapError):
    """There is no such command; the code is that of a shell."""

    exit_code = 127


class CommandNotExecutableError(GpusnapError):
    """The command is no program that can be run; the code is that of a shell."""

    exit_code = 126


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job's standard streams lead.

    Attributes:
        terminal: Whether the job works on gpusnap's terminal, in its session.
        stdin: Whether it has gpusnap's own standard input, else an empty one.
        stdout: Whether standard output goes to the run's file, else to the terminal.
        stderr: The same of standard error.
        together: Whether standard error goes to the file of standard output, so that the order
            of what is written stays as it is.
    """

    terminal: bool
    stdin: bool
    stdout: bool
    stderr: bool
    together: bool


def choose_streams() -> Streams:
    """What becomes of a job's streams where gpusnap's own are as they are.

    A terminal is passed on as it is if both input and output are one. Else the job is to survive
    the terminal: it gets a session of its own and writes into files. A pipe that it reads from is
    passed on; no process can be saved that has an end of a socket.
    """
    terminal = os.isatty(0) and os.isatty(1)
    stdin, stdout, stderr = map(_status, (0, 1, 2))
    readable = stdin is not None and not stat.S_ISSOCK(stdin.st_mode)
    return Streams(
        terminal=terminal,
        stdin=terminal or (readable and not os.isatty(0)),
        stdout=not terminal,
        stderr=not (terminal and os.isatty(2)),
        together=not terminal and _same(stdout, stderr),
    )


def _status(descriptor: int) -> os.stat_result | None:
    try:
        return os.fstat(descriptor)
    except OSError:  # it was started with that one closed
        return None


def _same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    if one is None or other is None:
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def make_files(folder: Path) -> None:
    """Make the files that a job writes into, empty.

    Raises:
        GpusnapError: The run folder cannot be written to.
    """
    with writing(folder):
        for name in (STDOUT, STDERR):
            os.close(os.open(folder / name, _APPEND | os.O_TRUNC | os.O_CLOEXEC, 0o600))


def start(run: Run, folder: Path, streams: Streams) -> ProcessId:
    """Start the command of a run.

    Raises:
        CommandNotFoundError: There is no such command.
        CommandNotExecutableError: It cannot be executed.
        GpusnapError: Its folder is gone, or the system allows no more processes.
    """
    command = [*run.command]
    environment = {**os.environ, RUN_VARIABLE: str(folder)}
    before = Path.cwd()
    try:
        os.chdir(run.directory)
    except OSError as error:
        raise GpusnapError(f"{run.directory} cannot be entered: {error.strerror}") from None
    try:
        pid = os.posix_spawnp(
            command[0],
            command,
            environment,
            file_actions=_actions(folder, streams),
            setsid=not streams.terminal,
            setsigdef=_RESET,
            setsigmask=(),
        )
    except OSError as error:
        raise _refused(command[0], error) from None
    finally:
        os.chdir(before)
    found = identity(pid)
    if found is None:
        raise GpusnapError(f"Process {pid} is not seen in /proc", cure="Mount /proc")
    return found


def _actions(folder: Path, streams: Streams) -> list[tuple[int, int, str, int, int]]:
    actions: list[tuple[object, ...]] = []
    if not streams.stdin:
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    if streams.stdout:
        actions.append((os.POSIX_SPAWN_OPEN, 1, str(folder / STDOUT), _APPEND, 0o600))
    if streams.together:
        actions.append((os.POSIX_SPAWN_DUP2, 1, 2))
    elif streams.stderr:
        actions.append((os.POSIX_SPAWN_OPEN, 2, str(folder / STDERR), _APPEND, 0o600))
    return actions  # type: ignore[return-value]


def _refused(name: str, error: OSError) -> GpusnapError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        cure = "Check its spelling, and PATH"
        return CommandNotFoundError(f"There is no command {name}", cure=cure)
    if isinstance(error, PermissionError) or error.errno == errno.ENOEXEC:
        return CommandNotExecutableError(f"{name} cannot be executed: {error.strerror}")
    return GpusnapError(f"{name} cannot be started: {error.strerror}")
