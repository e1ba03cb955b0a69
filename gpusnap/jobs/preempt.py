"""Lends a job's devices to an urgent command: suspend the job, run the command, resume the job."""

import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence

import msgspec

from gpusnap.arguments import check_codes, check_timeout
from gpusnap.errors import GpusnapError, NotFoundError, UsageError
from gpusnap.events import Event, Phase, PhaseStarted
from gpusnap.hookspecs import hookimpl
from gpusnap.jobs.relay import Relay
from gpusnap.phases import now_us
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.suspension import (
    DEFAULT_LOCK_TIMEOUT_US,
    Loan,
    Resumed,
    Suspended,
    SuspendOptions,
    lent,
)
from gpusnap.target import identity


class Preempted(msgspec.Struct, frozen=True, kw_only=True):
    """A job that runs again, and the command that had its devices meanwhile.

    Attributes:
        command: What was run.
        exit_code: The command's exit code, 128 + N where signal N ended it.
        command_us: How long it ran, in microseconds.
        suspended: What was taken off the devices.
        resumed: What was put back.
    """

    command: tuple[str, ...]
    exit_code: int
    command_us: int
    suspended: Suspended
    resumed: Resumed


def preempt(  # noqa: PLR0913 - the public call, all by keyword
    pid: int,
    command: str | Sequence[str],
    *,
    backend: str | None = None,
    lock_timeout_us: int = DEFAULT_LOCK_TIMEOUT_US,
    thp: bool = False,
    force: Collection[str] = (),
    stdout: int | None = None,
    plugins: Plugins | None = None,
) -> Preempted:
    """Suspend a job, run a command while its devices are free, and resume the job.

    The job is resumed however the command ends. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed
    on to the command meanwhile (where this is called from the main thread), and the job resumed
    once it has ended. Where this process is killed, ``gpusnap recover`` resumes the job.

    Args:
        pid: Root of the job's process tree.
        command: The command and its arguments; a text is split as a shell would, but run
            without one.
        backend: Backend to use; None asks all.
        lock_timeout_us: How long device work under way is waited for, in microseconds.
        thp: Have the kernel use huge pages, on the whole machine, while device memory is moved
            into host memory; put back afterwards.
        force: Codes of error findings to override.
        stdout: Descriptor for the command's standard output; by default this process's.
        plugins: The plugins to use; the installed ones by default.

    Raises:
        NotFoundError: There is no such process or command; the job was not touched.
        UsageError: The command cannot be one; the job was not touched.
        GpusnapError: The job could not be suspended, and runs on; the command could not be
            started, and the job runs on; or the job could not be resumed, as the text says.
    """
    arguments = find_command(command)
    options = SuspendOptions(
        backend=backend,
        lock_timeout_us=check_timeout("lock_timeout_us", lock_timeout_us),
        thp=thp,
        force=check_codes(force),
    )
    plugins = plugins or default_plugins()
    with Relay(same_terminal=True) as relay:
        guest = _Guest(arguments, stdout, relay)
        with (
            _listening(relay, plugins),
            _explained(pid, guest),
            lent(pid, options, plugins=plugins) as loan,
        ):
            guest.run(loan)
        if guest.exit_code is None:
            relay.again()
        if guest.exit_code is None or loan.resumed is None:
            raise GpusnapError("A signal came before the command; the job runs on")
        return Preempted(
            command=arguments,
            exit_code=guest.exit_code,
            command_us=guest.took_us,
            suspended=loan.suspended,
            resumed=loan.resumed,
        )


def find_command(command: str | Sequence[str]) -> tuple[str, ...]:
    """The words of a command whose program exists.

    Raises:
        UsageError: It can be none.
        NotFoundError: There is no such program.
    """
    try:
        words = tuple(shlex.split(command) if isinstance(command, str) else command)
    except ValueError as error:
        raise UsageError(f"{command!r} is no command: {error}") from None
    if not words or not words[0] or any("\0" in word for word in words):
        raise UsageError(f"{command!r} is no command")
    if shutil.which(words[0]) is None:
        msg = f"There is no command {words[0]!r}"
        raise NotFoundError(msg, cure="It is run without a shell; for one use: sh -c '...'")
    return words


class _Guest:
    """The urgent command."""

    def __init__(self, command: tuple[str, ...], stdout: int | None, relay: Relay) -> None:
        self._command = command
        self._stdout = stdout
        self._relay = relay
        self.exit_code: int | None = None
        self.took_us = 0

    def run(self, loan: Loan) -> None:
        """Start it and wait for its end, unless a signal came before."""
        if self._relay.received:
            return
        begin = now_us()
        with self._started() as process:
            guest = identity(process.pid)
            if guest is not None:
                loan.note_guest(guest)
            self._relay.attach(process.send_signal)
            status = process.wait()
        self.took_us = now_us() - begin
        self.exit_code = status if status >= 0 else 128 - status

    def _started(self) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(self._command, stdout=self._stdout)
        except OSError as error:
            msg = f"{self._command[0]} cannot be started: {error.strerror}"
            raise GpusnapError(msg, details=("The job runs on",)) from None


class _Holding:
    """Has the relay hold signals from the moment on in which the job is being suspended."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        match event:
            case PhaseStarted(phase=Phase.CHECKPOINT):
                self._relay.hold()


@contextlib.contextmanager
def _listening(relay: Relay, plugins: Plugins) -> Iterator[None]:
    holding = _Holding(relay)
    plugins.register(holding, f"preempt-{id(holding)}")
    try:
        yield
    finally:
        plugins.unregister(holding)


@contextlib.contextmanager
def _explained(pid: int, guest: _Guest) -> Iterator[None]:
    """Say how the command had ended where the job then could not be resumed."""
    try:
        yield
    except GpusnapError as error:
        if guest.exit_code is not None:
            error.details += (f"The command had ended with exit code {guest.exit_code}",)
            error.cure = error.cure or f"Run gpusnap resume {pid}"
        raise
