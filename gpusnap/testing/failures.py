"""Failures on demand: each is consumed by the driver call that it makes fail."""

import uuid
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import msgspec

from gpusnap.errors import UsageError
from gpusnap.testing.machine import Machine, write_struct


class DriverCall(StrEnum):
    """The calls of the simulated driver that act on a process."""

    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"


class FailureKind(StrEnum):
    """How a call fails."""

    BUSY = "busy"
    """Work is under way past the timeout; the process keeps running (CUDA's 600)."""
    UNSUPPORTED = "unsupported"
    """Refused, the state stays as it was (CUDA's 801 for managed memory)."""
    OUT_OF_MEMORY = "out-of-memory"
    """No memory to move to, the state stays as it was (CUDA's 2)."""
    HANG = "hang"
    """Nothing is done and the call never returns."""
    LOST_ANSWER = "lost-answer"
    """All is done, yet the call never returns."""


SENSIBLE = MappingProxyType(
    {
        FailureKind.BUSY: frozenset({DriverCall.LOCK}),
        FailureKind.UNSUPPORTED: frozenset({DriverCall.CHECKPOINT, DriverCall.RESTORE}),
        FailureKind.OUT_OF_MEMORY: frozenset({DriverCall.CHECKPOINT, DriverCall.RESTORE}),
        FailureKind.HANG: frozenset(DriverCall),
        FailureKind.LOST_ANSWER: frozenset(DriverCall),
    }
)
"""The calls that each kind of failure can befall."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure that waits for its call; ``pid`` None means any process."""

    call: DriverCall
    kind: FailureKind
    pid: int | None = None


def fail(
    machine: Machine | Path | str,
    operation: DriverCall | str,
    kind: FailureKind | str,
    *,
    times: int = 1,
    pid: int | None = None,
) -> None:
    """Make the next driver calls of one sort fail.

    Args:
        machine: The machine or its folder.
        operation: The call that is to fail.
        kind: How.
        times: How many calls fail; calls of several processes count each.
        pid: Only calls for this process fail, or None for any.

    Raises:
        UsageError: No such call or kind, or that call cannot fail in that way.
    """
    failure = Failure(call=_call(operation), kind=_kind(kind), pid=pid)
    if failure.call not in SENSIBLE[failure.kind]:
        msg = f"A {failure.call} call cannot fail as {failure.kind}"
        raise UsageError(msg)
    root = machine.path if isinstance(machine, Machine) else Path(machine)
    for _ in range(times):
        write_struct(root / "failures" / f"{uuid.uuid4().hex}.json", failure)


def _call(name: str) -> DriverCall:
    try:
        return DriverCall(name)
    except ValueError:
        msg = f"{name} is no driver call ({', '.join(DriverCall)})"
        raise UsageError(msg) from None


def _kind(name: str) -> FailureKind:
    try:
        return FailureKind(name)
    except ValueError:
        msg = f"{name} is no kind of failure ({', '.join(FailureKind)})"
        raise UsageError(msg) from None


def take_failure(machine: Machine, call: DriverCall, pid: int) -> FailureKind | None:
    """Consume a failure that waits for this call of this process, if there is one."""
    for path in sorted((machine.path / "failures").glob("*.json")):
        try:
            failure = msgspec.json.decode(path.read_bytes(), type=Failure)
            if failure.call is call and failure.pid in {None, pid}:
                path.unlink()  # whoever removes it has it: two processes may look at once
                return failure.kind
        except FileNotFoundError:
            continue
    return None
