"""Takes a living process off its devices, and puts it back: suspend and resume."""

from collections.abc import Collection

import msgspec

from gpusnap.arguments import check_codes, check_pid, check_timeout
from gpusnap.checks import check_device_memory, check_privileges, choose_backend, downgrade
from gpusnap.errors import NoBackendError, TargetError, refuse
from gpusnap.events import Found, Phase
from gpusnap.journal import Entry, Journal, Task, entries
from gpusnap.phases import Phases
from gpusnap.plugins import Backend, Plugins, default_plugins
from gpusnap.release import SAME_DEVICES, release_devices, roll_back
from gpusnap.repository import PhaseTime
from gpusnap.target import find_target, myself
from gpusnap.types import (
    Capability,
    DeviceImage,
    DeviceState,
    Operation,
    Severity,
    Target,
)
from gpusnap.worker import await_answers

DEFAULT_LOCK_TIMEOUT_US = 10 * 1_000_000


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """A target whose device state now lies in host memory."""

    pids: tuple[int, ...]
    claimed: tuple[int, ...]
    backend: str
    image: DeviceImage
    phases: tuple[PhaseTime, ...]


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """A target that computes again."""

    pids: tuple[int, ...]
    claimed: tuple[int, ...]
    backend: str
    phases: tuple[PhaseTime, ...]


class _Chosen(msgspec.Struct, frozen=True):
    target: Target
    backend: Backend
    pids: tuple[int, ...]


def _choose(pid: int, name: str | None, plugins: Plugins) -> _Chosen:
    refuse(tuple(check_privileges()), TargetError)
    target = find_target(check_pid(pid))
    claimed = choose_backend(target, plugins, name)
    if claimed.backend is None:
        msg = f"Process {pid} holds no state in any device that a usable backend knows"
        raise NoBackendError(msg, cure="See gpusnap backends and gpusnap ps")
    claimed.backend.require(Capability.SUSPEND)
    return _Chosen(target, claimed.backend, claimed.pids)


def _entry(task: Task, chosen: _Chosen) -> Entry:
    return Entry(
        task=task,
        owner=myself(),
        processes=tuple(process.id for process in chosen.target.processes),
        claimed=chosen.pids,
        backend=chosen.backend.name,
    )


def suspend(
    pid: int,
    *,
    backend: str | None = None,
    lock_timeout_us: int = DEFAULT_LOCK_TIMEOUT_US,
    force: Collection[str] = (),
    plugins: Plugins | None = None,
) -> Suspended:
    """Move a tree's device state into host memory and free the devices; the tree stays alive.

    Args:
        pid: Root of the process tree.
        backend: Backend to use; None asks all.
        lock_timeout_us: How long device work under way is waited for, in microseconds.
        force: Codes of error findings to override.
        plugins: The plugins to use; the installed ones by default.

    Raises:
        GpusnapError: Some step failed; the target runs on unless the text says otherwise.
    """
    check_timeout("lock_timeout_us", lock_timeout_us)
    plugins = plugins or default_plugins()
    phases = Phases(plugins.emit)
    with phases.step(Phase.PREFLIGHT):
        chosen = _choose(pid, backend, plugins)
        findings = chosen.backend.preflight(chosen.target, chosen.pids, Operation.SUSPEND)
        findings = downgrade(findings, check_codes(force))
        refuse(findings, TargetError)
    for finding in findings:
        if finding.severity is Severity.WARNING:
            plugins.emit(Found(finding=finding))
    journal = phases.journal = Journal.begin(_entry(Task.SUSPEND, chosen))
    image = _suspend(chosen, lock_timeout_us, phases, journal)
    journal.update(suspended=True, uses=image.uses)
    journal.leave()
    return Suspended(
        pids=chosen.target.pids,
        claimed=chosen.pids,
        backend=chosen.backend.name,
        image=image,
        phases=phases.times,
    )


def _suspend(chosen: _Chosen, timeout_us: int, phases: Phases, journal: Journal) -> DeviceImage:
    try:
        with phases.step(Phase.LOCK):
            phases.freeze(chosen.target.pids)
            chosen.backend.lock(chosen.pids, timeout_us)
        with phases.step(Phase.CHECKPOINT) as progress:
            return chosen.backend.checkpoint(chosen.pids, progress)
    except BaseException as error:
        roll_back(error, chosen.backend, chosen.pids, phases, journal)
        raise


def _take_over(pid: int, entry: Entry) -> Journal | None:
    """Hold the journal of a suspended target, which from now on is being resumed."""
    for suspended, held in entries():
        if suspended.suspended and not held and pid in suspended.pids:
            journal = Journal.take_over(suspended)
            if journal is not None:
                journal.update(task=entry.task, owner=entry.owner, suspended=False)
            return journal
    return None


def _leave_suspended(chosen: _Chosen, journal: Journal) -> None:
    """Half resumed is for ``gpusnap recover`` to complete; else it is suspended as before."""
    try:
        await_answers()
        states = chosen.backend.state(chosen.pids)
        journal.update(suspended=set(states.values()) == {DeviceState.CHECKPOINTED})
    finally:
        journal.leave()


def resume(pid: int, *, backend: str | None = None, plugins: Plugins | None = None) -> Resumed:
    """Put a suspended tree back on its devices.

    Args:
        pid: A process of the tree.
        backend: Backend to use; None asks all.
        plugins: The plugins to use; the installed ones by default.

    Raises:
        TargetError: The process is not suspended, or the driver refused.
        GpusnapError: It could not be resumed and stays suspended.
    """
    plugins = plugins or default_plugins()
    phases = Phases(plugins.emit)
    with phases.step(Phase.PREFLIGHT):
        chosen = _choose(pid, backend, plugins)
        states = chosen.backend.state(chosen.pids)
        if DeviceState.CHECKPOINTED not in states.values():
            msg = f"Process {pid} is not suspended"
            raise TargetError(msg)
        findings = chosen.backend.preflight(chosen.target, chosen.pids, Operation.RESUME)
        refuse(findings, TargetError)
    entry = _entry(Task.RESUME, chosen)
    journal = phases.journal = _take_over(pid, entry) or Journal.begin(entry)
    try:
        present = chosen.backend.devices()
        refuse(tuple(check_device_memory(journal.entry.uses, SAME_DEVICES, present)), TargetError)
        with phases.step(Phase.RESTORE) as progress:
            chosen.backend.restore(chosen.pids, SAME_DEVICES, progress)
        with phases.step(Phase.UNLOCK):
            release_devices(chosen.backend, chosen.pids)
    except BaseException:
        _leave_suspended(chosen, journal)
        raise
    journal.finish()
    return Resumed(
        pids=chosen.target.pids,
        claimed=chosen.pids,
        backend=chosen.backend.name,
        phases=phases.times,
    )
