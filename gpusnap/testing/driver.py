"""The calling side of the simulated driver; it lives in the backend's worker process.

A call is a request that the driver thread of the target takes and answers. A request that was
taken and is never answered makes the call wait for as long as the target lives, as a driver
that hangs does; one that was not even taken is withdrawn after the caller's patience.
"""

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from gpusnap.testing.errors import REFUSALS, NotReadyError, UnknownProcessError
from gpusnap.testing.failures import DriverCall
from gpusnap.testing.identity import identify, is_alive
from gpusnap.testing.machine import Machine, Registration
from gpusnap.testing.messages import (
    Answer,
    Request,
    has_request,
    put_request,
    take_answer,
    withdraw_request,
)
from gpusnap.types import ProcessId

_POLL_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.2
_REGISTER_SECONDS = 10.0
"""A restored process registers anew as soon as it runs; this is its time for that."""


def find_registration(machine: Machine, pid: int) -> Registration | None:
    """What the driver knows of a process; waits a little for one that was just restored."""
    until = time.monotonic() + _REGISTER_SECONDS
    while (found := machine.registration(pid)) is None and identify(pid) is not None:
        if time.monotonic() > until:
            return None
        time.sleep(_POLL_SECONDS)
    return found


class Driver:
    """The driver calls; arguments are what JSON can hold, errors travel by class name."""

    def ready(self) -> None:
        """Answer at once: the worker runs."""

    def lock(self, *, machine: str, pid: int, patience_us: int, timeout_us: int) -> None:
        """Lock a process, waiting for its work at most ``timeout_us``."""
        request = Request(id=uuid.uuid4().hex, call=DriverCall.LOCK, timeout_us=timeout_us)
        _call(Machine(Path(machine)), pid, request, patience_us)

    def checkpoint(self, *, machine: str, pid: int, patience_us: int) -> None:
        """Checkpoint a locked process."""
        request = Request(id=uuid.uuid4().hex, call=DriverCall.CHECKPOINT)
        _call(Machine(Path(machine)), pid, request, patience_us)

    def restore(self, *, machine: str, pid: int, patience_us: int, pairs: list[list[str]]) -> None:
        """Restore a checkpointed process, onto other devices where ``pairs`` says so."""
        mapped = tuple((old, new) for old, new in pairs)
        request = Request(id=uuid.uuid4().hex, call=DriverCall.RESTORE, pairs=mapped)
        _call(Machine(Path(machine)), pid, request, patience_us)

    def unlock(self, *, machine: str, pid: int, patience_us: int) -> None:
        """Unlock a process."""
        request = Request(id=uuid.uuid4().hex, call=DriverCall.UNLOCK)
        _call(Machine(Path(machine)), pid, request, patience_us)


def _call(machine: Machine, pid: int, request: Request, patience_us: int) -> None:
    registration = find_registration(machine, pid)
    if registration is None:
        msg = f"The simulated driver knows no process {pid}"
        raise UnknownProcessError(msg)
    folder = machine.process_folder(pid)
    owner = registration.owner
    _hand_over(folder, request, owner, time.monotonic() + patience_us / 1e6)
    answer = _await_answer(folder, request, owner)
    if answer.error is not None:
        raise REFUSALS[answer.error](answer.text)


def _hand_over(folder: Path, request: Request, owner: ProcessId, until: float) -> None:
    with _slot(folder, until):
        put_request(folder, request)
        while has_request(folder):
            if not is_alive(owner) and withdraw_request(folder):
                raise _ended(owner)
            if time.monotonic() > until and withdraw_request(folder):
                raise _not_taken(folder)
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _slot(folder: Path, until: float) -> Iterator[None]:
    """Be the only caller that places a request, until it was taken."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "callers", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        while not _locked(descriptor):
            if time.monotonic() > until:
                raise _not_taken(folder)
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _not_taken(folder: Path) -> NotReadyError:
    return NotReadyError(f"Process {folder.name} takes no driver calls, it may be stopped")


def _ended(owner: ProcessId) -> UnknownProcessError:
    return UnknownProcessError(f"Process {owner.pid} ended during a driver call")


def _await_answer(folder: Path, request: Request, owner: ProcessId) -> Answer:
    begin = time.monotonic()
    while (answer := take_answer(folder, request)) is None:
        if not is_alive(owner):
            raise _ended(owner)
        time.sleep(_pause(time.monotonic() - begin))
    return answer


def _pause(waited: float) -> float:
    """Look often at first, seldom once a call has hung for long."""
    return min(max(waited / 20, _POLL_SECONDS), _LONGEST_PAUSE_SECONDS)
