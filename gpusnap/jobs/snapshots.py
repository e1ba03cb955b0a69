"""The snapshots of a run: made one after the other, and those kept that its rules want."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from gpusnap.checkpoint import run_checkpoint
from gpusnap.errors import (
    BusyError,
    GpusnapError,
    IncompatibleError,
    IntegrityError,
    NotFoundError,
    PrivilegeError,
    UsageError,
)
from gpusnap.events import CriuNotified, Event
from gpusnap.hookspecs import hookimpl
from gpusnap.jobs.outputs import Length, read_lengths
from gpusnap.jobs.record import Run, RunOptions, making_snapshot, read_file, read_run, write_file
from gpusnap.plan import CheckpointOptions, choose_saving
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.repository import (
    Age,
    Grouping,
    Repository,
    RetentionPolicy,
    Snapshot,
    check_tags,
    open_snapshot,
)
from gpusnap.repository.pruning import remove_each, to_remove
from gpusnap.repository.retention import decide
from gpusnap.target import find_target

KEPT_BY_DEFAULT = 3
"""Newest snapshots that are kept where no rule was given: one may turn out to be damaged."""

_LEDGER = "snapshots.json"
_PARENT_UNFIT = (
    BusyError,
    IncompatibleError,
    IntegrityError,
    NotFoundError,
    PrivilegeError,
    UsageError,
)
"""What a parent that cannot be used is refused with, before anything is touched."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot of a run; it was begun, and is in the repository if it was also completed.

    Attributes:
        name: Its name in the repository.
        lengths: The job's files when it stood still.
        complete: Whether it was; it may since have been removed.
        intact: Whether all of it was, when it was last read again; None where nobody has.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]{6,18}\Z")]
    lengths: tuple[Length, ...] = ()
    complete: bool = False
    intact: bool | None = None


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``snapshots.json``, oldest first; ``last`` is the highest number given."""

    last: int = 0
    taken: tuple[Taken, ...] = ()


def read_ledger(folder: Path) -> Ledger:
    """The snapshots of a run; none where none was begun.

    Raises:
        IntegrityError: The list is damaged.
    """
    return read_file(folder / _LEDGER, Ledger) or Ledger()


def ledger_time(folder: Path) -> int:
    """When the list of a run's snapshots was last changed, in nanoseconds; 0 without one."""
    try:
        return (folder / _LEDGER).stat().st_mtime_ns
    except OSError:
        return 0


def forget_snapshots(folder: Path) -> None:
    """Begin a new run in the folder of an old one, whose snapshots stay in the repository."""
    write_file(folder / _LEDGER, Ledger(last=read_ledger(folder).last))


def snapshot_path(run: Run, taken: Taken) -> Path:
    """Where a snapshot of a run is, if it was completed and not removed."""
    return Path(run.repository) / taken.name


def newest_number(folder: Path, run: Run) -> int:
    """The number of the newest snapshot that was completed; 0 where there is none."""
    taken = (each for each in reversed(read_ledger(folder).taken))
    return next((number_of(each) for each in taken if snapshot_path(run, each).exists()), 0)


def number_of(taken: Taken) -> int:
    """The number in the name of a snapshot."""
    return int(taken.name.rpartition("-")[2])


def newest(folder: Path, run: Run) -> Snapshot | None:
    """The newest snapshot of a run whose manifest is intact; None where there is none."""
    with suppress(GpusnapError):
        return _newest(run, read_ledger(folder))
    return None


def _newest(run: Run, ledger: Ledger) -> Snapshot | None:
    for taken in reversed(ledger.taken):
        with suppress(GpusnapError):
            return open_snapshot(snapshot_path(run, taken))
    return None


def _parent(run: Run, ledger: Ledger) -> Snapshot | None:
    """What the next snapshot builds on: damage would be inherited."""
    sound = tuple(each for each in ledger.taken if each.intact is not False)
    return _newest(run, Ledger(taken=sound))


def note_intact(folder: Path, name: str, *, intact: bool) -> None:
    """Note what came out when a snapshot was read again; a full disk is no matter.

    Args:
        folder: The run's, whose :func:`gpusnap.jobs.record.making_snapshot` the caller holds.
        name: The snapshot's.
        intact: Whether all of it was.
    """
    with suppress(GpusnapError):
        ledger = read_ledger(folder)
        taken = tuple(
            msgspec.structs.replace(each, intact=intact) if each.name == name else each
            for each in ledger.taken
        )
        write_file(folder / _LEDGER, Ledger(last=ledger.last, taken=taken))


def take(
    folder: Path,
    pid: int,
    *,
    tags: Collection[str] = (),
    plugins: Plugins | None = None,
    **changes: object,
) -> Snapshot:
    """Make the next snapshot of a run and remove those that no rule keeps any more.

    It is called ``NAME-000001`` and so on, has the tag ``run:NAME``, and stores only what the
    run's newest one does not have. Whoever else makes one of the same run is waited for.

    Args:
        folder: The run's.
        pid: Root of the job's process tree.
        tags: More tags, beside the run's.
        plugins: The plugins to use; the installed ones by default.
        **changes: Fields of :class:`gpusnap.CheckpointOptions` that are other than the run's,
            such as ``leave_running``.

    Raises:
        GpusnapError: It could not be made; the job runs on unless the text says otherwise.
    """
    run = read_run(folder)
    plugins = plugins or default_plugins()
    with making_snapshot(folder):
        ledger = read_ledger(folder)
        entry = _Entry(folder, ledger, f"{run.name}-{_free_number(run, ledger):06d}", pid)
        plugins.register(entry, f"run-{run.name}")
        try:
            options = _attempts(run, _parent(run, ledger), tags, changes)
            snapshot = _checkpoint(run, entry, plugins, list(options))
        finally:
            plugins.unregister(entry)
        with suppress(GpusnapError, OSError):  # it is complete, whatever becomes of the others
            entry.confirm()
            if changes.get("leave_running", True):  # else the job may soon need one of the others
                _prune(folder, run)
    return snapshot


def _free_number(run: Run, ledger: Ledger) -> int:
    """The next number, past all that the repository has of runs of the same name."""
    pattern = re.compile(rf"{re.escape(run.name)}-(\d{{6,}})", re.ASCII)
    names: list[str] = []
    with suppress(OSError):  # which the checkpoint will tell
        names = os.listdir(run.repository)
    found = (match for name in names if (match := pattern.fullmatch(name)))
    return max((ledger.last, *(int(match[1]) for match in found))) + 1


class _Entry:
    """The line of a snapshot in the ledger; an event tells it when the job stands still."""

    def __init__(self, folder: Path, ledger: Ledger, name: str, pid: int) -> None:
        self._folder = folder
        self._ledger = ledger
        self.pid = pid
        self.taken = Taken(name=name)
        self._write()

    def _write(self) -> None:
        ledger = Ledger(last=number_of(self.taken), taken=(*self._ledger.taken, self.taken))
        write_file(self._folder / _LEDGER, ledger)

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        """Measure the job's files while CRIU holds it, before the snapshot is published."""
        if isinstance(event, CriuNotified) and event.script == "post-dump":
            lengths = read_lengths(self._folder, find_target(self.pid).pids)
            self.taken = Taken(name=self.taken.name, lengths=lengths)
            self._write()

    def confirm(self) -> None:
        """Write that it is complete.

        Raises:
            GpusnapError: It cannot be written.
        """
        self.taken = msgspec.structs.replace(self.taken, complete=True)
        self._write()


def _checkpoint(
    run: Run, entry: _Entry, plugins: Plugins, attempts: list[CheckpointOptions]
) -> Snapshot:
    path = snapshot_path(run, entry.taken)
    *unsure, last = attempts
    for options in unsure:
        with suppress(*_PARENT_UNFIT):
            return run_checkpoint(entry.pid, path, options=options, plugins=plugins)
    return run_checkpoint(entry.pid, path, options=last, plugins=plugins)


def _attempts(
    run: Run, parent: Snapshot | None, tags: Collection[str], changes: Mapping[str, object]
) -> Iterator[CheckpointOptions]:
    """Options to try one after the other: the last ones hardly depend on earlier snapshots."""
    wanted = run.options.incremental
    options = checkpoint_options(run, tags, incremental=wanted is not False)
    options = msgspec.structs.replace(options, **changes)
    if wanted is not False and parent is not None and _can_be_parent(parent):
        yield msgspec.structs.replace(options, parent=parent.path)
    if wanted is not None:
        yield options
    else:
        saving = msgspec.structs.replace(options.saving, incremental=False)
        yield from (options, msgspec.structs.replace(options, saving=saving))


def _can_be_parent(snapshot: Snapshot) -> bool:
    return snapshot.manifest.memory is not None and snapshot.manifest.memory.identities


def checkpoint_options(
    run: Run, tags: Collection[str] = (), *, incremental: bool
) -> CheckpointOptions:
    """How the snapshots of a run are made.

    Args:
        run: The run.
        tags: More tags, beside the run's.
        incremental: Whether what a parent has is not stored again.

    Raises:
        UsageError: The options do not go together.
    """
    asked = run.options
    return CheckpointOptions(
        backend=asked.backend,
        timeout_us=asked.timeout_us,
        lock_timeout_us=asked.lock_timeout_us,
        tcp_established=asked.tcp_established,
        file_locks=asked.file_locks,
        external_unix_sockets=asked.ext_unix_sk,
        link_remap=asked.link_remap,
        saving=choose_saving(
            asked.compress,
            workers=asked.parallel_workers,
            budget=asked.memory_budget,
            incremental=incremental,
        ),
        thp=asked.thp,
        force=frozenset(asked.force),
        tags=check_tags((f"run:{run.name}", *asked.tag, *tags)),
    )


def retention(options: RunOptions) -> RetentionPolicy:
    """Which snapshots of a run are kept: the newest always, for the job may need it."""
    counts = {
        name: getattr(options, name)
        for name in ("keep_hourly", "keep_daily", "keep_weekly", "keep_monthly")
    }
    ruled = options.keep_last or any(counts.values()) or options.keep_within or options.keep_tag
    return RetentionPolicy(
        keep_last=max(1, options.keep_last) if ruled else KEPT_BY_DEFAULT,
        keep_within=Age.parse(options.keep_within) if options.keep_within else None,
        keep_tags=options.keep_tag,
        group_by=Grouping.NONE,
        **counts,
    )


def _prune(folder: Path, run: Run) -> None:
    """Remove what no rule keeps; what cannot be removed now is tried again the next time.

    The newest that is known to be intact is kept, and damaged ones take no place of others.
    """
    ledger = read_ledger(folder)
    repository = Repository.open(run.repository)
    present, safe = {}, ""
    for taken in ledger.taken:
        with suppress(GpusnapError):
            snapshot = open_snapshot(snapshot_path(run, taken))
            if taken.intact is not False:
                present[taken.name] = snapshot
            if taken.intact:
                safe = taken.name
    doomed = to_remove(decide(present.values(), retention(run.options)))
    remove_each(tuple(each for each in doomed if each.name != safe), repository.remove)
    left = tuple(each for each in ledger.taken if snapshot_path(run, each).exists())
    write_file(folder / _LEDGER, Ledger(last=ledger.last, taken=left))
    repository.clean()  # what a gpusnap that was killed has left
