"""Restores one snapshot again and again: to catch a rare bug, or to see whether a job repeats."""

import os
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from gpusnap.arguments import check_codes, check_timeout
from gpusnap.device_map import DeviceNames, DeviceReference, choose_devices
from gpusnap.errors import BusyError, IncompatibleError, NotFoundError, UsageError, refuse
from gpusnap.inprocess.answers import check_overrides
from gpusnap.jobs.adoption import adopting, continue_snapshot
from gpusnap.jobs.originals import Originals, check_outputs, digest_of, written_files
from gpusnap.phases import now_us
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.repository import Snapshot, require_intact, resolve
from gpusnap.restore import (
    DEFAULT_TIMEOUT_US,
    RestoredTarget,
    RestoreOptions,
    plan_restore,
)
from gpusnap.target import alive
from gpusnap.types import Engine

DEFAULT_TIMES = 10
_CANNOT_RUN = {126, 127}
"""What a shell exits with where it cannot run a command."""


class Output(msgspec.Struct, frozen=True):
    """A file as a run left it; without a digest there was none."""

    path: str
    sha256: str | None


class ReplayedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the snapshot to its end.

    Attributes:
        number: The first is 1.
        exit_code: Of the root, 128 + N where signal N ended it; None where that is not known.
        timed_out: Whether it was killed because it took too long.
        outputs: The files that are compared.
        microseconds: From the restore to its end.
    """

    number: int
    exit_code: int | None
    timed_out: bool
    outputs: tuple[Output, ...]
    microseconds: int


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What several runs of one snapshot came to.

    Attributes:
        runs: In order.
        stopped: Whether the condition to wait for was met, in the last run.
        identical: Whether all runs came to the same.
        groups: Numbers of runs that came to the same, the largest group first.
    """

    snapshot: str
    runs: tuple[ReplayedRun, ...]
    stopped: bool
    identical: bool
    groups: tuple[tuple[int, ...], ...]


Started = Callable[[int, RestoredTarget], None]
Report = Callable[[ReplayedRun], None]


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs have in common."""

    snapshot: Snapshot
    options: RestoreOptions
    outputs: tuple[Path, ...]
    until: str | None
    run_timeout_us: int | None
    stdout: int | None
    plugins: Plugins
    started: Started
    report: Report


def replay(  # noqa: PLR0913 - the public call, all by keyword
    checkpoint_path: str | Path,
    *,
    times: int = DEFAULT_TIMES,
    until: str | None = None,
    outputs: Iterable[str | Path] | None = None,
    run_timeout_us: int | None = None,
    overrides: Mapping[str, str] | None = None,
    repository: str | Path | None = None,
    backend: str | None = None,
    device_map: DeviceNames = (),
    devices: Collection[DeviceReference] = (),
    timeout_us: int = DEFAULT_TIMEOUT_US,
    force: Collection[str] = (),
    stdout: int | None = None,
    plugins: Plugins | None = None,
    started: Started = lambda _number, _target: None,
    report: Report = lambda _run: None,
) -> Replayed:
    """Restore a snapshot several times, one after the other, each time until the job has ended.

    Before each run the files that the snapshot has open for writing, and ``outputs``, are put
    back as they were before the first run, those that are not only appended to cut to the length
    they had in the snapshot; the last run's are left. Each run has a PID namespace of its own,
    except where CRIU's own plugin restores the devices.

    Args:
        checkpoint_path: Path, name or unique prefix of a snapshot, or ``latest``.
        times: How often at most.
        until: A shell command, run after each run with ``GPUSNAP_REPLAY_RUN`` (its number) and
            ``GPUSNAP_REPLAY_EXIT_CODE`` (empty where the run was killed for its time); when it
            exits with 0, the replay stops.
        outputs: Files to compare; by default those the snapshot has open for writing.
        run_timeout_us: A run that takes longer, in microseconds, is killed; None for never.
        overrides: Values for the restored program, as for a restore.
        repository: Repository folder; None for the default one.
        backend: Backend to use instead of the snapshot's.
        device_map: As for a restore.
        devices: As for a restore.
        timeout_us: How long CRIU may take, in microseconds.
        force: Codes of error findings to override.
        stdout: Descriptor for the standard output of ``until``; by default this process's.
        plugins: The plugins to use; the installed ones by default.
        started: Called with the number of each run once it computes.
        report: Called after each run.

    Returns:
        All runs, and which of them came to the same exit code and the same outputs.

    Raises:
        UsageError: An argument can never be right, or ``until`` cannot be run.
        BusyError: The job that was saved still runs, and writes to the same files.
        NotFoundError: There is no such snapshot; or an output was there after no run.
        GpusnapError: The snapshot could not be restored; or a file cannot be put back.
    """
    _check_times(times)
    if run_timeout_us is not None:
        check_timeout("run_timeout_us", run_timeout_us)
    snapshot = resolve(checkpoint_path, repository)
    written = written_files(snapshot)
    named = None if outputs is None else check_outputs(outputs)
    case = _Case(
        snapshot=snapshot,
        options=RestoreOptions(
            backend=backend,
            timeout_us=check_timeout("timeout_us", timeout_us),
            new_pids=fits_new_pids(snapshot),
            devices=choose_devices(device_map, devices),
            overrides=check_overrides(overrides or {}),
            force=check_codes(force),
        ),
        outputs=tuple(written) if named is None else named,
        until=until,
        run_timeout_us=run_timeout_us,
        stdout=stdout,
        plugins=plugins or default_plugins(),
        started=started,
        report=report,
    )
    files = dict.fromkeys(named or ()) | {path: each.size for path, each in written.items()}
    _check(case, files)
    with Originals(files) as originals, adopting():
        return _replay(case, times, originals)


def _check_times(times: object) -> None:
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise UsageError(f"A snapshot cannot be replayed {times!r} times")


def fits_new_pids(snapshot: Snapshot) -> bool:
    """Whether it can be restored into a PID namespace of its own."""
    manifest = snapshot.manifest
    by_plugin = manifest.backend is not None and manifest.engine is Engine.CRIU_PLUGIN
    return not by_plugin and 1 not in manifest.target.pids


def _check(case: _Case, files: Collection[Path]) -> None:
    """See, before any file is touched, that the snapshot is to be trusted and its job gone."""
    root = case.snapshot.manifest.target.root
    if files and alive(root.id):
        path = min(files)
        msg = f"Process {root.pid} ({root.name}), which was saved, still runs and may write {path}"
        raise BusyError(msg, cure="End it first, or wait for its end")
    plan = plan_restore(case.snapshot.path, options=case.options, plugins=case.plugins)
    refuse(plan.findings, IncompatibleError)
    require_intact(case.snapshot, lambda _done, _total: None)


def _replay(case: _Case, times: int, originals: Originals) -> Replayed:
    runs: list[ReplayedRun] = []
    stopped = False
    while len(runs) < times and not stopped:
        originals.put_back()
        runs.append(_run(case, len(runs) + 1))
        case.report(runs[-1])
        stopped = case.until is not None and _met(case.until, runs[-1], case.stdout)
    if not stopped:
        _refuse_missing(case.outputs, runs)
    groups = _groups(runs)
    return Replayed(
        snapshot=str(case.snapshot.path),
        runs=tuple(runs),
        stopped=stopped,
        identical=len(groups) == 1,
        groups=groups,
    )


def _run(case: _Case, number: int) -> ReplayedRun:
    restored = continue_snapshot(case.snapshot.path, case.options, case.plugins)
    begin = now_us()
    with restored as continuation:
        case.started(number, continuation.target)
        ended = continuation.wait(case.run_timeout_us)
        took = now_us() - begin
    return ReplayedRun(
        number=number,
        exit_code=continuation.exit_code if ended else None,
        timed_out=not ended,
        outputs=tuple(Output(str(path), digest_of(path)) for path in case.outputs),
        microseconds=took,
    )


def _met(until: str, run: ReplayedRun, stdout: int | None) -> bool:
    code = "" if run.exit_code is None else str(run.exit_code)
    told = {"GPUSNAP_REPLAY_RUN": str(run.number), "GPUSNAP_REPLAY_EXIT_CODE": code}
    shell = ["/bin/sh", "-c", until]
    status = subprocess.run(shell, env={**os.environ, **told}, stdout=stdout, check=False)
    if status.returncode in _CANNOT_RUN:
        msg = f"The command {until!r}, which is to tell when to stop, cannot be run"
        raise UsageError(msg, cure="Try it in a shell")
    return status.returncode == 0


def _refuse_missing(outputs: Collection[Path], runs: Collection[ReplayedRun]) -> None:
    found = {output.path for run in runs for output in run.outputs if output.sha256 is not None}
    for path in outputs:
        if str(path) not in found:
            msg = f"The output {path} was there after none of the runs"
            raise NotFoundError(msg, cure="Name a file that the job writes")


def _groups(runs: Iterable[ReplayedRun]) -> tuple[tuple[int, ...], ...]:
    alike: dict[object, list[int]] = {}
    for run in runs:
        alike.setdefault((run.exit_code, run.timed_out, run.outputs), []).append(run.number)
    return tuple(map(tuple, sorted(alike.values(), key=len, reverse=True)))
