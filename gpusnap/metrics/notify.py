"""Notifications: ``GPUSNAP_NOTIFY`` names a command that is run for what a person should know.

It is run when a snapshot was published, an operation failed, or a supervised job crashed or has a
faulty device, with the event as one line of JSON on its standard input. It is started when the
operation is over, gpusnap waits a second at most for it, and ``timeout`` ends it after its deadline
whatever becomes of gpusnap.
"""

import contextlib
import os
import shlex
import subprocess

from gpusnap.errors import GpusnapError, UsageError
from gpusnap.events import Event, OperationFailed, RunReported, SnapshotPublished
from gpusnap.jobs.record import RUN_VARIABLE
from gpusnap.jobs.reports import Happening
from gpusnap.metrics.log import json_line
from gpusnap.metrics.outlet import Batch, Outlet

_VARIABLE = "GPUSNAP_NOTIFY"
_DEADLINE_S = 30
"""How long the command may take."""
_PATIENCE_S = 1.0
"""How long gpusnap waits, to be able to say that the command does not work."""

_ENDINGS = {
    124: f"did not end within {_DEADLINE_S} s",
    126: "cannot be run",
    127: "does not exist",
    137: f"did not end within {_DEADLINE_S} s and was killed",
}
"""What the exit codes of ``timeout`` say of its command."""


class Notify(Outlet):
    """Runs the command."""

    variables = (_VARIABLE,)

    def __init__(self) -> None:
        super().__init__()
        self._running: list[subprocess.Popen[bytes]] = []

    def tell(self, batch: Batch) -> None:
        """Run the command for those events of a batch that are worth it."""
        told = [each.event for each in batch.heard if _worth_telling(each.event)]
        if told:
            command = _command(os.environ[_VARIABLE])
            self._running += [_start(command, event) for event in told]
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running[-1].wait(_PATIENCE_S)
        self._check()

    def _check(self) -> None:
        """Find out how commands ended, also those of earlier operations."""
        ended = [each for each in self._running if each.poll() is not None]
        self._running = [each for each in self._running if each not in ended]
        for each in ended:
            if each.returncode:
                raise _failed(each.returncode)


def _worth_telling(event: Event) -> bool:
    match event:
        case OperationFailed() | SnapshotPublished():
            return True
        case RunReported(happening=happening):
            return happening in {Happening.CRASHED, Happening.FAULT}
    return False


def _command(text: str) -> list[str]:
    try:
        command = shlex.split(text)
    except ValueError as error:
        msg = f"{_VARIABLE} is no command: {error}"
        raise UsageError(msg, cure="Quote it as for a shell") from None
    if not command:
        msg = f"{_VARIABLE} holds no command"
        raise UsageError(msg, cure="Unset it")
    return command


def _start(command: list[str], event: Event) -> "subprocess.Popen[bytes]":
    limit = ["timeout", "--kill-after=5", str(_DEADLINE_S)]
    # One that runs gpusnap itself must not be told of that, nor be taken for a part of the job.
    without = {_VARIABLE, RUN_VARIABLE}
    environment = {name: value for name, value in os.environ.items() if name not in without}
    # Not a pipe: whether the command reads it or not, nobody waits.
    with os.fdopen(os.memfd_create("gpusnap-event"), "w+b") as letter:
        letter.write(json_line(event))
        letter.seek(0)
        return subprocess.Popen(
            [*limit, *command],
            stdin=letter,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


def _failed(code: int) -> GpusnapError:
    how = _ENDINGS.get(code, f"ended with exit code {code}")
    msg = f"The command of {_VARIABLE} {how}"
    return GpusnapError(msg, cure="Run it by hand with the event on its standard input")


notify = Notify()
