"""Cleans up after a gpusnap that was killed: what its journals name is put right."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpusnap.errors import BusyError, DeadlineError, GpusnapError
from gpusnap.journal import Entry, Journal, Task, entries, unreadable
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.release import kill_restored, release_devices
from gpusnap.repository import Repository, give_up_folder
from gpusnap.target import alive
from gpusnap.thp import put_back
from gpusnap.types import DeviceState
from gpusnap.worker import workers_of

_ON_DEVICES = frozenset({DeviceState.RUNNING, DeviceState.LOCKED})
DEFAULT_TIMEOUT_US = 10 * 60 * 1_000_000


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one interrupted operation, and what became of it.

    ``task`` is None where that cannot be told any more, and without ``pids`` it is about the whole
    machine.
    """

    task: Task | None
    pids: tuple[int, ...]
    outcome: str
    failed: bool = False


def recover(
    pid: int | None = None,
    *,
    timeout_us: int = DEFAULT_TIMEOUT_US,
    plugins: Plugins | None = None,
) -> tuple[Recovered, ...]:
    """Put right what interrupted operations left: targets run on, half-restored ones are ended.

    Suspended targets stay suspended, but for those of a preemption. Running it twice, or with
    nothing to do, does no harm.

    Args:
        pid: A process of the target to look at, or None for all.
        timeout_us: How long to wait for CRIU and driver calls of the dead gpusnap to end.
        plugins: The plugins to use; the installed ones by default.

    Returns:
        One struct for each interrupted operation, and one where the machine's switch for huge
        pages had been left set.
    """
    plugins = plugins or default_plugins()
    found = list(map(_damaged, unreadable()))
    for entry, held in entries():
        if held or (pid is not None and pid not in entry.pids) or _stays_suspended(entry):
            continue
        journal = Journal.take_over(entry)
        if journal is not None:
            found.append(_recover(journal, timeout_us, plugins))
    return (*found, *_recover_huge_pages())


def _recover_huge_pages() -> Iterator[Recovered]:
    """The machine's switch, which is nobody's in particular: whatever target is looked at."""
    try:
        value = put_back()
    except GpusnapError as error:
        yield Recovered(task=None, pids=(), outcome=error.text, failed=True)
        return
    if value is not None:
        yield Recovered(task=None, pids=(), outcome=f"huge pages are switched to {value}")


def _stays_suspended(entry: Entry) -> bool:
    return entry.stays_suspended and any(map(alive, entry.processes))


def _damaged(path: Path) -> Recovered:
    pid = path.stem.rpartition("-")[2]
    pids = (int(pid),) if pid.isdigit() else ()
    outcome = (
        f"its journal {path} cannot be read; if process {pid} stands still, gpusnap resume {pid} "
        "may help; then remove the file"
    )
    return Recovered(task=None, pids=pids, outcome=outcome, failed=True)


def _recover(journal: Journal, timeout_us: int, plugins: Plugins) -> Recovered:
    entry = journal.entry
    pids = tuple(sorted(entry.pids))
    try:
        _refuse_guest(entry)
        _await_leftovers(entry, timeout_us)
        put_right = _recover_restore if entry.task is Task.RESTORE else _recover_running
        outcome = put_right(entry, plugins)
        journal.finish()
    except Exception as error:  # noqa: BLE001 - one target must not keep the others waiting
        journal.leave()
        text = error.text if isinstance(error, GpusnapError) else f"{type(error).__name__}: {error}"
        return Recovered(task=entry.task, pids=pids, outcome=text, failed=True)
    return Recovered(task=entry.task, pids=pids, outcome=outcome)


def _refuse_guest(entry: Entry) -> None:
    """Leave the devices to the urgent command, which may run for long and is not waited for."""
    if entry.guest is not None and alive(entry.guest):
        pid = entry.guest.pid
        msg = f"process {pid}, which it was suspended for, still runs: run gpusnap recover after it"
        raise BusyError(msg)


def _await_leftovers(entry: Entry, timeout_us: int) -> None:
    """Wait for the dead gpusnap's CRIU and driver calls, which end their own way.

    The workers of one that lives, a program that uses gpusnap, are at its service and do not end.
    """
    deadline = time.monotonic() + timeout_us / 1e6
    while _under_way(entry):
        if time.monotonic() > deadline:
            msg = f"CRIU or a driver call of the interrupted {entry.task} is still under way"
            raise DeadlineError(msg, cure="Wait for it and run gpusnap recover again")
        time.sleep(0.05)


def _under_way(entry: Entry) -> bool:
    if entry.criu is not None and alive(entry.criu):
        return True
    return not alive(entry.owner) and bool(workers_of(entry.owner))


def _recover_running(entry: Entry, plugins: Plugins) -> str:
    """Bring the devices back, then remove a draft that was not published."""
    living = [process for process in entry.processes if alive(process)]
    claimed = tuple(process.pid for process in living if process.pid in entry.claimed)
    if entry.backend is not None and claimed:
        release_devices(plugins.backend(entry.backend), claimed, entry.device_map)
    _remove_draft(entry)
    return "the target runs on" if living else "the target is gone"


def _remove_draft(entry: Entry) -> None:
    if entry.path is None:
        return
    path = Path(entry.path)
    with contextlib.suppress(GpusnapError):
        Repository.open(path.parent).discard_draft(path.name)


def _recover_restore(entry: Entry, plugins: Plugins) -> str:
    if entry.work is not None and entry.path is not None:
        snapshot = Path(entry.path)
        give_up_folder(snapshot.parent, snapshot.name, Path(entry.work))
    if _is_whole(entry, plugins):
        return "the restore was complete; the target runs on"
    killed = kill_restored(entry)
    if not killed:
        return "nothing was left"
    return f"half-restored processes were ended: {', '.join(map(str, killed))}"


def _is_whole(entry: Entry, plugins: Plugins) -> bool:
    """True for a tree that only lacked the last words: it computes, or waits for an unlock."""
    if not entry.resumed or not alive(entry.processes[0]):
        return False
    if entry.backend is None or not entry.claimed:
        return True
    backend = plugins.backend(entry.backend)
    states = backend.state(entry.claimed)
    whole = all(states.get(pid) in _ON_DEVICES for pid in entry.claimed)
    if whole:
        release_devices(backend, entry.claimed)
    return whole
