"""Takes a living process off its devices, and puts it back: suspend and resume."""

import contextlib
import time
from collections.abc import Collection, Iterator

import msgspec

from gpusnap.arguments import check_codes, check_pid, check_timeout
from gpusnap.checks import choose_backend, downgrade
from gpusnap.device_map import (
    NO_CHOICE,
    Before,
    DeviceChoice,
    DeviceNames,
    DeviceReference,
    choose_devices,
    map_devices,
)
from gpusnap.errors import GpusnapError, NoBackendError, TargetError, refuse
from gpusnap.events import Found, Phase
from gpusnap.findings import check_known_codes, check_privileges
from gpusnap.journal import Entry, Journal, Task, entries
from gpusnap.phases import Phases, operation
from gpusnap.plugins import Backend, Plugins, default_plugins
from gpusnap.release import (
    SAME_DEVICES,
    confirm_checkpointed,
    release_devices,
    roll_back,
)
from gpusnap.repository import PhaseTime
from gpusnap.target import find_target, myself
from gpusnap.thp import check_switch, huge_pages
from gpusnap.types import (
    Capability,
    DeviceImage,
    DeviceMap,
    DeviceState,
    Operation,
    ProcessId,
    Severity,
    Target,
)
from gpusnap.worker import await_answers

DEFAULT_LOCK_TIMEOUT_US = 10 * 1_000_000
_ROOM_S = 10.0
"""How long devices may take to be free once those that had them meanwhile have ended."""


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
    device_map: DeviceMap
    phases: tuple[PhaseTime, ...]


class SuspendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a target is suspended.

    Attributes:
        backend: Backend to use; None asks all.
        lock_timeout_us: How long device work under way is waited for, in microseconds.
        thp: Have the kernel use huge pages, on the whole machine, while device memory is moved
            into host memory; put back afterwards.
        force: Codes of error findings to override.
    """

    backend: str | None = None
    lock_timeout_us: int = DEFAULT_LOCK_TIMEOUT_US
    thp: bool = False
    force: frozenset[str] = frozenset()


class _Chosen(msgspec.Struct, frozen=True):
    target: Target
    backend: Backend
    pids: tuple[int, ...]


def _choose(pid: int, name: str | None, plugins: Plugins, operation: Operation) -> _Chosen:
    refuse(tuple(check_privileges()), TargetError)
    target = find_target(check_pid(pid))
    claimed = choose_backend(target, plugins, name, operation)
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


def suspend(  # noqa: PLR0913 - the public call, all by keyword
    pid: int,
    *,
    backend: str | None = None,
    lock_timeout_us: int = DEFAULT_LOCK_TIMEOUT_US,
    thp: bool = False,
    force: Collection[str] = (),
    plugins: Plugins | None = None,
) -> Suspended:
    """Move a tree's device state into host memory and free the devices; the tree stays alive.

    Args:
        pid: Root of the process tree.
        backend: Backend to use; None asks all.
        lock_timeout_us: How long device work under way is waited for, in microseconds.
        thp: Have the kernel use huge pages, on the whole machine, while device memory is moved
            into host memory; put back afterwards.
        force: Codes of error findings to override.
        plugins: The plugins to use; the installed ones by default.

    Raises:
        GpusnapError: Some step failed; the target runs on unless the text says otherwise.
    """
    options = SuspendOptions(
        backend=backend,
        lock_timeout_us=check_timeout("lock_timeout_us", lock_timeout_us),
        thp=thp,
        force=check_codes(force),
    )
    plugins = plugins or default_plugins()
    with operation(plugins.emit, Operation.SUSPEND, pid=pid):
        suspended, journal = _take_off(Task.SUSPEND, pid, options, Phases(plugins.emit), plugins)
        journal.leave()
        return suspended


def _take_off(
    task: Task, pid: int, options: SuspendOptions, phases: Phases, plugins: Plugins
) -> tuple[Suspended, Journal]:
    """Suspend a tree and go on holding its journal."""
    forced = check_known_codes(options.force, plugins)
    with phases.step(Phase.PREFLIGHT):
        chosen = _choose(pid, options.backend, plugins, Operation.SUSPEND)
        findings = chosen.backend.preflight(chosen.target, chosen.pids, Operation.SUSPEND)
        findings = downgrade(findings, forced)
        if options.thp:
            findings = (*findings, *check_switch())
        refuse(findings, TargetError)
    for finding in findings:
        if finding.severity is Severity.WARNING:
            plugins.emit(Found(finding=finding))
    journal = phases.journal = Journal.begin(_entry(task, chosen))
    filling = huge_pages(plugins.emit, wanted=options.thp)
    image = _suspend(chosen, options.lock_timeout_us, phases, journal, filling)
    suspended = Suspended(
        pids=chosen.target.pids,
        claimed=chosen.pids,
        backend=chosen.backend.name,
        image=image,
        phases=phases.times,
    )
    return suspended, journal


def _suspend(
    chosen: _Chosen,
    timeout_us: int,
    phases: Phases,
    journal: Journal,
    filling: contextlib.AbstractContextManager[None],
) -> DeviceImage:
    try:
        with phases.step(Phase.LOCK):
            phases.freeze(chosen.target.pids)
            chosen.backend.lock(chosen.pids, timeout_us)
        with phases.step(Phase.CHECKPOINT) as progress:
            with filling:
                image = chosen.backend.checkpoint(chosen.pids, progress)
            # Else neither recover nor resume would touch one that is only locked
            confirm_checkpointed(chosen.backend, chosen.pids)
            # In the step, which signals wait for: until then nobody knows that it is suspended.
            journal.update(suspended=True, uses=image.uses)
            return image
    except BaseException as error:
        with contextlib.suppress(GpusnapError):  # the way back needs no note
            journal.update(suspended=False)
        roll_back(error, chosen.backend, chosen.pids, phases, journal)
        raise


def _take_over(pid: int, entry: Entry) -> Journal | None:
    """Hold the journal of a suspended target, which from now on is being resumed."""
    for suspended, held in entries():
        if suspended.suspended and not held and pid in suspended.pids:
            journal = Journal.take_over(suspended)
            if journal is not None:
                _note_resume(journal, entry)
            return journal
    return None


def _note_resume(journal: Journal, entry: Entry) -> None:
    try:
        journal.update(task=entry.task, owner=entry.owner, suspended=False)
    except BaseException:
        journal.leave()  # else a caller that goes on would hold it for good
        raise


def _map(chosen: _Chosen, entry: Entry, choice: DeviceChoice, plugins: Plugins) -> DeviceMap:
    """On which devices the target comes back; it was suspended on those of this machine."""
    present = chosen.backend.devices()
    before = Before(devices=present, pids=chosen.pids, uses=entry.uses)
    mapped = map_devices(chosen.backend, before, present, choice)
    refuse(mapped.findings, TargetError)
    for finding in mapped.findings:
        plugins.emit(Found(finding=finding))
    return mapped.device_map or SAME_DEVICES


def _settle(error: BaseException, chosen: _Chosen, journal: Journal) -> None:
    """Suspended as before; or half resumed, which is completed here or by ``gpusnap recover``.

    Here first: a recovery has to wait for the calls of a dead gpusnap, and one may never return.
    """
    resumed = False
    try:
        await_answers()
        states = chosen.backend.state(chosen.pids)
        suspended = set(states.values()) == {DeviceState.CHECKPOINTED}
        journal.update(suspended=suspended)
        if not suspended:
            release_devices(chosen.backend, chosen.pids, journal.entry.device_map)
            resumed = True
    finally:
        if resumed:
            journal.finish()
        else:
            journal.leave()
    if resumed and isinstance(error, GpusnapError):
        error.details = (*error.details, "The target runs on its devices nevertheless")


def resume(
    pid: int,
    *,
    backend: str | None = None,
    device_map: DeviceNames = (),
    devices: Collection[DeviceReference] = (),
    plugins: Plugins | None = None,
) -> Resumed:
    """Put a suspended tree back on its devices, or on others.

    Args:
        pid: A process of the tree.
        backend: Backend to use, which alone is asked then; None asks all.
        device_map: Devices and those that are to replace them, each by its index, its UUID or a
            unique beginning of that; what is not named follows by itself.
        devices: The devices that the tree may use, named likewise; by default all.
        plugins: The plugins to use; the installed ones by default.

    Raises:
        TargetError: The process is not suspended, or the driver refused.
        NotFoundError: There is no such process or device.
        UsageError: The choice of devices contradicts itself.
        GpusnapError: It could not be resumed and stays suspended, unless the details say that it
            runs.
    """
    plugins = plugins or default_plugins()
    choice = choose_devices(device_map, devices)
    phases = Phases(plugins.emit)
    with operation(plugins.emit, Operation.RESUME, pid=pid):
        chosen = _choose_suspended(pid, backend, phases, plugins)
        entry = _entry(Task.RESUME, chosen)
        journal = phases.journal = _take_over(pid, entry) or Journal.begin(entry)
        return _put_back(chosen, journal, choice, phases, plugins)


def _choose_suspended(pid: int, backend: str | None, phases: Phases, plugins: Plugins) -> _Chosen:
    with phases.step(Phase.PREFLIGHT):
        chosen = _choose(pid, backend, plugins, Operation.RESUME)
        states = chosen.backend.state(chosen.pids)
        if DeviceState.CHECKPOINTED not in states.values():
            msg = f"Process {pid} is not suspended"
            raise TargetError(msg)
        findings = chosen.backend.preflight(chosen.target, chosen.pids, Operation.RESUME)
        refuse(findings, TargetError)
        return chosen


def _put_back(
    chosen: _Chosen, journal: Journal, choice: DeviceChoice, phases: Phases, plugins: Plugins
) -> Resumed:
    """Resume a tree whose journal is held; the journal is let go of, whatever happens."""
    try:
        mapped = _map(chosen, journal.entry, choice, plugins)
        journal.update(device_map=mapped)
        with phases.step(Phase.RESTORE) as progress:
            chosen.backend.restore(chosen.pids, mapped, progress)
        with phases.step(Phase.UNLOCK):
            release_devices(chosen.backend, chosen.pids, mapped)
    except BaseException as error:
        _settle(error, chosen, journal)
        raise
    journal.finish()
    return Resumed(
        pids=chosen.target.pids,
        claimed=chosen.pids,
        backend=chosen.backend.name,
        device_map=mapped,
        phases=phases.times,
    )


class Loan:
    """The devices of a suspended tree, as somebody else has them.

    Attributes:
        suspended: What was taken off them.
        resumed: That it was put back, once the block of :func:`lent` has ended.
    """

    def __init__(self, suspended: Suspended, journal: Journal) -> None:
        self._journal = journal
        self.suspended = suspended
        self.resumed: Resumed | None = None

    def note_guest(self, guest: ProcessId) -> None:
        """Note who has the devices now, so that a recovery does not take them away."""
        # Only a recovery reads it, and it finds out what lacks also without.
        with contextlib.suppress(GpusnapError):
            self._journal.update(guest=guest)


@contextlib.contextmanager
def lent(pid: int, options: SuspendOptions, *, plugins: Plugins | None = None) -> Iterator[Loan]:
    """Suspend a tree for the length of the block; it is resumed however that ends.

    Meanwhile the journal is held, so that nobody else resumes it; where gpusnap is killed,
    ``gpusnap recover`` does.

    Args:
        pid: Root of the process tree.
        options: How it is suspended.
        plugins: The plugins to use; the installed ones by default.

    Raises:
        GpusnapError: It could not be suspended, and runs on; or it could not be resumed, and
            stays suspended, unless the details say that it runs.
    """
    plugins = plugins or default_plugins()
    phases = Phases(plugins.emit)
    loan: Loan | None = None
    try:
        # In here, for plugins may take their time over its last event, and a signal comes then
        with operation(plugins.emit, Operation.SUSPEND, pid=pid):
            suspended, journal = _take_off(Task.PREEMPT, pid, options, phases, plugins)
            loan = Loan(suspended, journal)
        yield loan
    finally:
        if loan is not None:
            with operation(plugins.emit, Operation.RESUME, pid=pid):
                loan.resumed = _take_back(pid, options.backend, journal, phases, plugins)


def _take_back(
    pid: int, backend: str | None, journal: Journal, phases: Phases, plugins: Plugins
) -> Resumed:
    try:
        chosen = _choose_suspended(pid, backend, phases, plugins)
        _await_room(chosen, journal.entry)
    except BaseException:
        journal.leave()
        raise
    resumed = _put_back(chosen, journal, NO_CHOICE, phases, plugins)
    phases.thaw(resumed.pids)
    return resumed


def _await_room(chosen: _Chosen, entry: Entry) -> None:
    """Wait for device memory: a driver may give back what a process had after its end."""
    deadline = time.monotonic() + _ROOM_S
    while time.monotonic() < deadline:
        present = chosen.backend.devices()
        before = Before(devices=present, pids=chosen.pids, uses=entry.uses)
        found = map_devices(chosen.backend, before, present, NO_CHOICE).findings
        if all(finding.severity is not Severity.ERROR for finding in found):
            return
        time.sleep(0.1)
