"""Cleans up after a gpusnap that was killed: what its journals name is put right."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpusnap.errors import DeadlineError, GpusnapError
from gpusnap.journal import Entry, Journal, Task, entries
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.release import kill_restored, release_devices
from gpusnap.repository import Repository
from gpusnap.target import alive
from gpusnap.worker import workers_of

DEFAULT_TIMEOUT_US = 10 * 60 * 1_000_000


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one interrupted operation, and what became of it."""

    task: Task
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

    Suspended targets stay suspended. Running it twice, or with nothing to do, does no harm.

    Args:
        pid: A process of the target to look at, or None for all.
        timeout_us: How long to wait for CRIU and driver calls of the dead gpusnap to end.
        plugins: The plugins to use; the installed ones by default.

    Returns:
        One struct for each interrupted operation.
    """
    plugins = plugins or default_plugins()
    found = []
    for entry, held in entries():
        if held or (pid is not None and pid not in entry.pids) or _stays_suspended(entry):
            continue
        journal = Journal.take_over(entry)
        if journal is not None:
            found.append(_recover(journal, timeout_us, plugins))
    return tuple(found)


def _stays_suspended(entry: Entry) -> bool:
    return entry.suspended and any(map(alive, entry.processes))


def _recover(journal: Journal, timeout_us: int, plugins: Plugins) -> Recovered:
    entry = journal.entry
    pids = tuple(sorted(entry.pids))
    try:
        _await_leftovers(entry, timeout_us)
        outcome = _OUTCOMES[entry.task](entry, plugins)
    except GpusnapError as error:
        journal.leave()
        return Recovered(task=entry.task, pids=pids, outcome=error.text, failed=True)
    journal.finish()
    return Recovered(task=entry.task, pids=pids, outcome=outcome)


def _await_leftovers(entry: Entry, timeout_us: int) -> None:
    """Wait for the dead gpusnap's CRIU and driver calls, which end their own way."""
    deadline = time.monotonic() + timeout_us / 1e6
    while workers_of(entry.owner.pid) or (entry.criu is not None and alive(entry.criu)):
        if time.monotonic() > deadline:
            msg = f"CRIU or a driver call of the interrupted {entry.task} is still under way"
            raise DeadlineError(msg, cure="Wait for it and run gpusnap recover again")
        time.sleep(0.05)


def _recover_running(entry: Entry, plugins: Plugins) -> str:
    """Bring the devices back; a draft that was not published is removed."""
    _remove_draft(entry)
    living = [process for process in entry.processes if alive(process)]
    if not living:
        return "the target is gone"
    claimed = tuple(process.pid for process in living if process.pid in entry.claimed)
    if entry.backend is not None and claimed:
        release_devices(plugins.backend(entry.backend), claimed)
    return "the target runs on"


def _remove_draft(entry: Entry) -> None:
    if entry.path is None:
        return
    with contextlib.suppress(GpusnapError):
        Repository.open(Path(entry.path).parent).clean()


def _recover_restore(entry: Entry, _plugins: Plugins) -> str:
    killed = kill_restored(entry.processes, entry.executables)
    if not killed:
        return "nothing was left"
    return f"half-restored processes were ended: {', '.join(map(str, killed))}"


_OUTCOMES: dict[Task, Callable[[Entry, Plugins], str]] = {
    Task.CHECKPOINT: _recover_running,
    Task.SUSPEND: _recover_running,
    Task.RESUME: _recover_running,
    Task.RESTORE: _recover_restore,
}
