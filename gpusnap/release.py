"""Brings processes back from whatever state an operation left them in."""

import contextlib
import time
from collections.abc import Collection

from gpusnap.ending import end_trees, still_there
from gpusnap.errors import DeadlineError, DeviceError, GpusnapError, TargetError
from gpusnap.events import Phase
from gpusnap.journal import Entry, Journal
from gpusnap.phases import Phases
from gpusnap.plugins import Backend
from gpusnap.target import host_ticks, identity, read_process, same
from gpusnap.types import DeviceMap, DeviceState, ProcessId
from gpusnap.worker import await_answers

SAME_DEVICES = DeviceMap()
"""Every device replaced by itself."""

_ATTEMPTS = 3
_SETTLE_S = 60.0
"""How long a state between two others may last before it counts as stuck."""

_DEATH_S = 30.0
"""How long the kernel may take to end what was killed."""

_BETWEEN = frozenset({DeviceState.CHECKPOINTING, DeviceState.RESTORING})


def release_devices(
    backend: Backend, pids: tuple[int, ...], device_map: DeviceMap = SAME_DEVICES
) -> None:
    """Make processes run again: restore those checkpointed, unlock those locked.

    It goes by what the driver says, never by what was asked of it before, and looks again
    afterwards: a call whose caller died may still take effect late. Processes that are gone are
    no matter, nor is a driver's worker that dies on the way.

    Raises:
        DeviceError: A process could not be brought back.
        DeadlineError: The driver does not answer.
    """
    failure: GpusnapError | None = None
    for _attempt in range(_ATTEMPTS):
        try:
            states = _settled(backend, pids)
            if all(state is DeviceState.RUNNING for state in states.values()):
                return
            failure = _push(backend, states, device_map)
        except DeadlineError:  # it would only be waited for once more
            raise
        except GpusnapError as error:
            failure = error
    try:
        states = _settled(backend, pids)
    except GpusnapError:
        _release_others(backend, pids, device_map)
        raise
    stuck = {pid: state for pid, state in states.items() if state != "running"}
    for pid, state in stuck.items():
        msg = f"Process {pid} is left {state} in the driver"
        why = (failure.text,) if failure is not None else ()
        raise DeviceError(msg, pid=pid, state=state, cure="Run gpusnap recover", details=why)


def _release_others(backend: Backend, pids: tuple[int, ...], device_map: DeviceMap) -> None:
    """One whose state the driver does not tell must not keep the others back."""
    for pid in pids if len(pids) > 1 else ():
        with contextlib.suppress(GpusnapError):  # the error is told already
            release_devices(backend, (pid,), device_map)


def _push(
    backend: Backend, states: dict[int, DeviceState], device_map: DeviceMap
) -> GpusnapError | None:
    """Restore and unlock what needs it; a process that fails must not keep the others back."""
    failure = None
    checkpointed = _in_state(states, DeviceState.CHECKPOINTED)
    try:
        if checkpointed:
            backend.restore(checkpointed, device_map)
    except GpusnapError as error:
        failure = error
    locked = _in_state(backend.state(tuple(states)), DeviceState.LOCKED)
    try:
        if locked:
            backend.unlock(locked)
    except GpusnapError as error:
        failure = error
    return failure


def _in_state(states: dict[int, DeviceState], wanted: DeviceState) -> tuple[int, ...]:
    return tuple(pid for pid, state in states.items() if state is wanted)


def _settled(backend: Backend, pids: tuple[int, ...]) -> dict[int, DeviceState]:
    deadline = time.monotonic() + _SETTLE_S
    states = backend.state(pids)
    while _BETWEEN & set(states.values()) and time.monotonic() < deadline:
        time.sleep(0.1)
        states = backend.state(pids)
    return states


def confirm_checkpointed(backend: Backend, pids: tuple[int, ...]) -> None:
    """Fail closed where a process would be dealt with as if its device memory lay in the host's.

    Raises:
        DeviceError: The driver says that a process is not checkpointed.
    """
    states = backend.state(pids)
    for pid in pids:
        state = states.get(pid)
        if state is not DeviceState.CHECKPOINTED:
            msg = f"The driver says that process {pid} is {state or 'gone'}, not checkpointed"
            raise DeviceError(msg, pid=pid, state=state, cure="Try again")


def roll_back(
    error: BaseException,
    backend: Backend | None,
    pids: tuple[int, ...],
    phases: Phases,
    journal: Journal,
) -> None:
    """Make the target run again; what cannot be put right stays in the journal.

    Args:
        error: Why; it gets further details.
        backend: Backend of the target, None if it has no device state.
        pids: PIDs with device state.
        phases: The operation's clock.
        journal: The operation's journal, finished or left for ``gpusnap recover``.
    """
    details: tuple[str, ...] = ()
    try:
        with phases.step(Phase.ROLLBACK):
            await_answers()
            if backend is not None:
                release_devices(backend, pids)
    except GpusnapError as failure:
        details = (failure.text, "Run gpusnap recover to try again")
        journal.leave()
    except BaseException:  # interrupted once more: gpusnap recover need not wait for our end
        journal.leave()
        raise
    else:
        phases.thaw(pids)
        with contextlib.suppress(GpusnapError):  # a journal too many does no harm
            journal.finish()
    if isinstance(error, GpusnapError):
        error.details = (*error.details, *details)


def now_ticks() -> int:
    """The present in the unit of :attr:`gpusnap.types.ProcessId.start_ticks`."""
    return host_ticks(time.clock_gettime_ns(time.CLOCK_BOOTTIME))


def kill_restored(entry: Entry) -> tuple[int, ...]:
    """Kill what a failed restore left of a tree, with all that it has forked since it ran.

    Once CRIU had made all processes their identities are known, and only they are meant and what
    they forked, as far as :func:`gpusnap.ending.stop_trees` finds it. Before that a process is
    taken for one of the tree if it has one of its PIDs, started no earlier than the restore and
    runs a program of the tree, or still CRIU; a stranger that got such a PID meanwhile is left
    alone.

    Args:
        entry: The journal of the restore.

    Returns:
        PIDs that were killed and are gone.

    Raises:
        TargetError: One was killed and is still there.
    """
    left = [found for each in entry.processes if (found := _remnant(each, entry)) is not None]
    ended = end_trees(left, _DEATH_S)
    if ended.left:
        raise TargetError(still_there(ended.left[0]), cure="Run gpusnap recover once it has ended")
    return tuple(sorted(process.pid for process in ended.killed))


def _remnant(process: ProcessId, entry: Entry) -> ProcessId | None:
    current = identity(process.pid)
    if current is None:
        return None
    if entry.made:
        return current if same(current, process) else None
    if current.start_ticks + 1 < process.start_ticks:  # rounded, by readers of other clocks
        return None
    return current if _runs_one_of(process.pid, entry.executables) else None


def _runs_one_of(pid: int, executables: Collection[str]) -> bool:
    try:
        executable = read_process(pid).executable
    except (OSError, GpusnapError):
        return False
    return executable is not None and program_path(executable) in executables


def program_path(executable: str) -> str:
    """Path of a program file, which the kernel shows otherwise once it was replaced."""
    return executable.removesuffix(" (deleted)")
