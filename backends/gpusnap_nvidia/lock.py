"""Locks and unlocks the device work of processes, all or none of them.

Processes that compute together wait for each other on the device: while one is locked, a
kernel of another may wait for it and never end, so that its lock times out although nothing
is wrong. So all are locked at once, and where one does not come, all are let go for a moment
before the next try.
"""

import time

from gpusnap.errors import DeadlineError, DeviceError, GpusnapError
from gpusnap.types import DeviceState
from gpusnap_nvidia import results
from gpusnap_nvidia.calls import CallFailed, Calls
from gpusnap_nvidia.outcome import failed

ATTEMPTS = 3
"""Tries to lock several processes together, which share the time allowed."""

PAUSE_S = 0.2
"""How long the processes run between two tries."""


def lock(calls: Calls, pids: tuple[int, ...], timeout_us: int) -> dict[int, DeviceState]:
    """Lock processes.

    Raises:
        DeadlineError: Device work did not end in time; all run again.
        DeviceError: The driver refused; all run again.
    """
    attempts = ATTEMPTS if len(pids) > 1 else 1
    attempt_us = timeout_us // attempts
    failures = _try(calls, pids, attempt_us)
    left = _release(calls, pids, failures)
    while (attempts := attempts - 1) and not left and _only_timed_out(failures):
        time.sleep(PAUSE_S)
        failures = _try(calls, pids, attempt_us)
        left = _release(calls, pids, failures)
    if failures:
        raise _refusal(calls, failures, left)
    return dict.fromkeys(pids, DeviceState.LOCKED)


def _try(calls: Calls, pids: tuple[int, ...], timeout_us: int) -> dict[int, GpusnapError]:
    timeout_ms = max(1, timeout_us // 1000)  # 0 would wait for ever
    deadline_us = timeout_us + calls.deadlines.answer_us
    # The worker waits less long than we do, so that it knows of every lock that we gave up, even
    # where it begins late.
    until = time.monotonic() + (timeout_us + calls.deadlines.answer_us // 2) / 1e6
    return calls.each("lock", pids, deadline_us, timeout_ms=timeout_ms, until=until)


def _only_timed_out(failures: dict[int, GpusnapError]) -> bool:
    return bool(failures) and all(map(_timed_out, failures.values()))


def _timed_out(error: GpusnapError) -> bool:
    return isinstance(error, CallFailed) and error.code == results.NOT_READY


def _release(
    calls: Calls, pids: tuple[int, ...], failures: dict[int, GpusnapError]
) -> dict[int, GpusnapError]:
    """After a failure, unlock what this try locked, also by unanswered calls; give what failed.

    A process that answered with an error was not locked by this try and is left alone.
    """
    if not failures:
        return {}
    unanswered = tuple(pid for pid, error in failures.items() if not isinstance(error, CallFailed))
    states = calls.read_back(unanswered, calls.deadlines.answer_us)
    locked = [pid for pid in pids if pid not in failures]
    locked += [pid for pid, state in states.items() if state is DeviceState.LOCKED]
    return calls.each("unlock", locked, calls.deadlines.answer_us)


def _refusal(
    calls: Calls, failures: dict[int, GpusnapError], left: dict[int, GpusnapError]
) -> GpusnapError:
    stuck = [f"Process {pid} stays locked: {error.text}" for pid, error in left.items()]
    error = failed("lock", calls, failures)
    if _timed_out(error):
        error = DeadlineError(error.text, cure=error.cure, details=error.details)
    error.details = (*error.details, *stuck)
    if stuck:
        error.cure = "Run gpusnap recover"
    return error


def unlock(calls: Calls, pids: tuple[int, ...]) -> dict[int, DeviceState]:
    """Unlock processes; those that run already are left alone.

    Raises:
        DeviceError: The driver refused one, or does not know it; the others are unlocked.
    """
    states = calls.states(pids)
    waiting = [pid for pid, state in states.items() if state is not DeviceState.RUNNING]
    failures = calls.each("unlock", waiting, calls.deadlines.answer_us)
    for pid in set(pids) - set(states):
        failures[pid] = DeviceError(f"The driver no longer knows process {pid}", pid=pid)
    if failures:
        raise failed("unlock", calls, failures)
    return dict.fromkeys(pids, DeviceState.RUNNING)
