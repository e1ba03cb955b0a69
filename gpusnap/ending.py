"""Processes ended by force: that very one, never a stranger that got its PID meanwhile."""

import errno
import itertools
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from gpusnap.target import gone, identity, kin_of, myself, stands
from gpusnap.types import ProcessId

_LOOK_S = 0.01
_STOP_S = 1.0
"""How long a process may take to stop; a call of a driver may keep it for longer."""
_SEARCH_S = 10.0
"""How long processes are searched that were forked: some fork faster than they are found."""
_NO_PROCESS = frozenset({errno.ESRCH, errno.EINVAL, errno.ENOENT})
"""What the kernel says where nobody has a PID, or where it is the number of a mere thread."""


def kill(process: ProcessId) -> None:
    """Kill a process; one that is gone is no matter.

    Args:
        process: Its identity as this process reads it, without a tick's difference.
    """
    _send(process, signal.SIGKILL)


def _send(process: ProcessId, number: signal.Signals) -> None:
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno in _NO_PROCESS:
            return
        raise
    try:
        # The handle stands for whoever has the PID now: only then who that is stays so.
        if identity(process.pid) == process:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def stop_trees(processes: Iterable[ProcessId]) -> tuple[ProcessId, ...]:
    """Stop processes with all that they have forked, so that none can fork once more.

    They are to be killed next: what is killed at once leaves children that nobody finds any more.
    A child whose parent has ended is found by its session, if one of the processes leads that; one
    that has left it too is not. This process itself is never meant.

    Args:
        processes: Their identities as this process reads them, parents before their children.

    Returns:
        All of them, children before their parents. Killed in that order, none runs on meanwhile:
        the kernel continues stopped processes whose group a parent's end cuts off.
    """
    found = dict.fromkeys(processes)
    try:
        _stop_all(found)
    except BaseException:  # interrupted: none is to stand there for ever
        for process in reversed(found):
            kill(process)
        raise
    return tuple(reversed(found))


def _stop_all(found: dict[ProcessId, None]) -> None:
    deadline = time.monotonic() + _SEARCH_S
    fresh = list(found)
    while fresh and time.monotonic() < deadline:
        for process in fresh:
            _send(process, signal.SIGSTOP)
        # One that a driver holds back stops as it comes out, before it could fork
        _wait(stands, fresh, _STOP_S)
        fresh = _forked_by(found)
        found.update(dict.fromkeys(fresh))


def _forked_by(known: Collection[ProcessId]) -> list[ProcessId]:
    """Their children, else the rest of the sessions that they lead; none that is known."""
    besides = {*known, myself()}
    kin = [each for each in kin_of({each.pid for each in known}) if each.process not in besides]
    # Who has its PID even now had it all along, so that it was meant as a parent or a leader. A
    # session has the PID of the process that began it, and only a fork leads into it.
    present = {each.pid for each in known if identity(each.pid) == each}
    children = [each.process for each in kin if each.parent_pid in present]
    return children or [each.process for each in kin if each.session_id in present]


class Ended(NamedTuple):
    """What was killed, and what of that is still there."""

    killed: tuple[ProcessId, ...]
    left: tuple[ProcessId, ...]


def end_trees(processes: Iterable[ProcessId], timeout_s: float) -> Ended:
    """Kill processes with all that they have forked, as far as :func:`stop_trees` finds it.

    Args:
        processes: Their identities as this process reads them, parents before their children.
        timeout_s: How long to wait until the kernel has ended them.
    """
    doomed = stop_trees(processes)
    for process in doomed:
        kill(process)
    return Ended(doomed, wait_gone(doomed, timeout_s))


def wait_gone(processes: Iterable[ProcessId], timeout_s: float) -> tuple[ProcessId, ...]:
    """Wait until processes have ended, each with all its threads; return those that have not.

    One that has ended and waits to be reaped by its parent is not waited for.
    """
    return _wait(gone, processes, timeout_s)


def _wait(
    done: Callable[[ProcessId], bool], processes: Iterable[ProcessId], timeout_s: float
) -> tuple[ProcessId, ...]:
    deadline = time.monotonic() + timeout_s
    left = tuple(itertools.filterfalse(done, processes))
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        left = tuple(itertools.filterfalse(done, left))
    return left


def still_there(process: ProcessId) -> str:
    """What to say of a process that was killed and that the kernel has not ended yet."""
    return f"Process {process.pid} was killed but is still there"
