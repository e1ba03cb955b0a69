"""Starts several continuations of one snapshot side by side, each with other values."""

import contextlib
import itertools
import select
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from gpusnap.arguments import check_codes, check_timeout
from gpusnap.criu import Overlay
from gpusnap.device_map import DeviceReference, choose_devices
from gpusnap.errors import GpusnapError, IncompatibleError, UsageError, refuse
from gpusnap.inprocess.answers import check_overrides
from gpusnap.jobs.adoption import Continuation, adopting, continue_snapshot
from gpusnap.jobs.originals import Written, written_files
from gpusnap.jobs.privacy import check_new, check_private, forget_work, make_overlay
from gpusnap.phases import now_us
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.repository import Snapshot, resolve
from gpusnap.restore import DEFAULT_TIMEOUT_US, RestoreOptions, plan_restore

BRANCH = "branch"
"""Name of the override that tells a branch its number."""

_GRACE_S = 10.0
"""How long branches may take to end once they were asked to, where all are ended."""

Place = tuple[str, ...]
"""The devices of one branch."""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation.

    Attributes:
        number: The first is 1; the program finds it in the override ``branch``.
        overrides: What the program was handed, with the number.
        devices: The devices that it may use, as they were named; empty where it has none.
        root_pid: Its root here; None where it could not be restored.
        exit_code: Of the root, 128 + N where signal N ended it; None where there is none.
        failure: Why it could not be restored.
        folders: Where its versions of private folders are.
        microseconds: From its restore to its end.
    """

    number: int
    overrides: dict[str, str]
    devices: Place
    root_pid: int | None = None
    exit_code: int | None = None
    failure: str | None = None
    folders: tuple[str, ...] = ()
    microseconds: int = 0


class Branched(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all continuations of one snapshot.

    Attributes:
        branches: By number.
        succeeded: Whether all were restored and ended with exit code 0.
    """

    snapshot: str
    branches: tuple[Branch, ...]
    succeeded: bool


Report = Callable[[Branch], None]


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    """What all branches have in common."""

    snapshot: Snapshot
    options: RestoreOptions
    private: tuple[Path, ...]
    written: dict[Path, Written]
    plugins: Plugins
    started: Report
    report: Report


def branch(  # noqa: PLR0913 - the public call, all by keyword
    checkpoint_path: str | Path,
    grid: Mapping[str, Sequence[str]],
    *,
    devices: Collection[DeviceReference] = (),
    per_device: int = 1,
    private: Iterable[str | Path] = (),
    repository: str | Path | None = None,
    backend: str | None = None,
    timeout_us: int = DEFAULT_TIMEOUT_US,
    force: Collection[str] = (),
    plugins: Plugins | None = None,
    started: Report = lambda _branch: None,
    report: Report = lambda _branch: None,
) -> Branched:
    """Continue a snapshot once for each point of a grid, and wait until all have ended.

    The program must have saved itself with :func:`gpusnap.checkpoint_self`, which returns the
    point as ``overrides``, with the branch's number as ``branch``. Each branch has a PID namespace
    of its own. A branch that cannot be restored does not keep the others back. Where this call is
    interrupted, the branches get SIGTERM, and SIGKILL 10 seconds later.

    Args:
        checkpoint_path: Path, name or unique prefix of a snapshot, or ``latest``.
        grid: Names, each with its values; every combination is a branch, the last name changes
            fastest.
        devices: The devices to use, each by its index, its UUID or a unique beginning of that; by
            default all. A program that uses several devices gets as many of them.
        per_device: How many branches may run at once on a device; the others wait.
        private: Folders of which each branch has a version of its own. What branch 2 writes into
            ``/data/run`` goes to ``/data/run.branch-2``, and the folder itself stays as it is.
            Files in it that the snapshot has open for writing lack what was written since.
        repository: Repository folder; None for the default one.
        backend: Backend to use instead of the snapshot's.
        timeout_us: How long CRIU may take, in microseconds, for each.
        force: Codes of error findings to override.
        plugins: The plugins to use; the installed ones by default.
        started: Called when a branch runs.
        report: Called when one has ended, or could not be restored.

    Raises:
        UsageError: An argument can never be right.
        NotFoundError: There is no such snapshot, device or private folder.
        IncompatibleError: The program reads no overrides, or the devices do not fit; or the
            branches would overwrite a file that the snapshot has open, because it is in no private
            folder. What is only appended to gets the lines of all.
        GpusnapError: Results of earlier branches are in the way.
    """
    points = _points(grid)
    if per_device < 1:
        raise UsageError(f"{per_device} branches cannot run on a device")
    plugins = plugins or default_plugins()
    snapshot = resolve(checkpoint_path, repository)
    case = _Case(
        snapshot=snapshot,
        options=RestoreOptions(
            backend=backend,
            timeout_us=check_timeout("timeout_us", timeout_us),
            new_pids=True,
            force=check_codes(force),
        ),
        private=check_private(private),
        written=written_files(snapshot),
        plugins=plugins,
        started=started,
        report=report,
    )
    if len(points) > 1:
        _refuse_shared(case)
    check_new(case.private, len(points))
    places = _places(snapshot, devices, plugins)
    _check_places(case, places, points[0])
    with adopting():
        branches = _Branches(case, points, places * per_device).run()
    return Branched(
        snapshot=str(snapshot.path),
        branches=branches,
        succeeded=all(each.exit_code == 0 for each in branches),
    )


def _points(grid: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], ...]:
    """The overrides of each branch."""
    if BRANCH in grid:
        raise UsageError(f"{BRANCH} is the name under which a branch gets its number")
    if not grid or not all(grid.values()) or any(isinstance(each, str) for each in grid.values()):
        raise UsageError("A grid takes names, each with a list of values")
    combined = itertools.product(*grid.values())
    return tuple(
        check_overrides({**dict(zip(grid, values, strict=True)), BRANCH: str(number)})
        for number, values in enumerate(combined, 1)
    )


def _refuse_shared(case: _Case) -> None:
    """Each branch goes on writing where the others do, unless it only appends."""
    for path, written in case.written.items():
        if written.size is not None and not any(map(path.is_relative_to, case.private)):
            msg = f"The branches would overwrite {path} for each other: the snapshot has it open"
            raise IncompatibleError(msg, cure=f"Use --private {path.parent}")


def _places(
    snapshot: Snapshot, devices: Collection[DeviceReference], plugins: Plugins
) -> list[Place]:
    """The devices in groups as large as the program needs."""
    manifest = snapshot.manifest
    if manifest.backend is None:
        # With devices named, the restore says that there is nothing to choose them for
        return [choose_devices(devices=devices).devices]
    names = choose_devices(devices=devices).devices or tuple(
        str(device.index) for device in plugins.backend(manifest.backend).devices()
    )
    if len({*names}) < len(names):
        raise UsageError("A device is named twice", cure="Use --per-device for several on one")
    uses = manifest.device_regions.uses if manifest.device_regions is not None else ()
    size = max(1, len({use.device_uuid for use in uses}))
    groups = [names[at : at + size] for at in range(0, len(names), size)]
    return [group for group in groups if len(group) == size] or [names]


def _check_places(case: _Case, places: Iterable[Place], overrides: dict[str, str]) -> None:
    """See before the first branch that the snapshot fits onto every place."""
    for place in places:
        options = msgspec.structs.replace(
            case.options, devices=choose_devices(devices=place), overrides=overrides
        )
        plan = plan_restore(case.snapshot.path, options=options, plugins=case.plugins)
        refuse(plan.findings, IncompatibleError)


class _Running(msgspec.Struct, frozen=True):
    """A branch that runs."""

    branch: Branch
    continuation: Continuation
    overlays: tuple[Overlay, ...]
    begin_us: int


class _Branches:
    """All branches: those that wait, those that run, those that have ended."""

    def __init__(
        self, case: _Case, points: Iterable[dict[str, str]], places: Iterable[Place]
    ) -> None:
        self._case = case
        self._waiting = deque(enumerate(points, 1))
        self._free = deque(places)
        self._running: list[_Running] = []
        self._ended: list[Branch] = []

    def run(self) -> tuple[Branch, ...]:
        """Run all of them."""
        try:
            while self._waiting or self._running:
                while self._waiting and self._free:
                    self._start(*self._waiting.popleft(), self._free.popleft())
                self._await_one()
        finally:
            self._end_all()
        return tuple(sorted(self._ended, key=lambda each: each.number))

    def _start(self, number: int, overrides: dict[str, str], place: Place) -> None:
        case = self._case
        begin = now_us()
        branch = Branch(number=number, overrides=overrides, devices=place)
        with contextlib.ExitStack() as undo:
            try:
                overlays = tuple(_overlays(case, number, undo))
                options = msgspec.structs.replace(
                    case.options,
                    devices=choose_devices(devices=place),
                    overrides=overrides,
                    overlays=overlays,
                )
                restored = continue_snapshot(case.snapshot.path, options, case.plugins)
            except GpusnapError as error:
                self._finish(msgspec.structs.replace(branch, failure=error.text), begin)
                return
            undo.pop_all()
            branch = msgspec.structs.replace(
                branch,
                root_pid=restored.target.root_pid,
                folders=tuple(str(overlay.changes) for overlay in overlays),
            )
            self._running.append(_Running(branch, restored, overlays, begin))
        case.started(branch)

    def _await_one(self) -> None:
        """Wait until one or several branches have ended."""
        if not self._running:
            return
        poll = select.poll()
        for each in self._running:
            poll.register(each.continuation, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        for each in [each for each in self._running if each.continuation.fileno() in ready]:
            self._close(each)
            code = each.continuation.exit_code
            self._finish(msgspec.structs.replace(each.branch, exit_code=code), each.begin_us)

    def _close(self, running: _Running) -> None:
        self._running.remove(running)
        with running.continuation:
            running.continuation.wait(0)
        forget_work(running.overlays)

    def _finish(self, branch: Branch, begin_us: int) -> None:
        branch = msgspec.structs.replace(branch, microseconds=now_us() - begin_us)
        self._free.append(branch.devices)
        self._ended.append(branch)
        self._case.report(branch)

    def _end_all(self) -> None:
        """End what still runs, where something came between."""
        for each in self._running:
            each.continuation.send(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        for each in tuple(self._running):
            left = max(0.0, deadline - time.monotonic())
            each.continuation.wait(round(left * 1e6))
            self._close(each)


def _overlays(case: _Case, number: int, undo: contextlib.ExitStack) -> Iterator[Overlay]:
    for folder in case.private:
        overlay = make_overlay(folder, number, case.written.values())
        undo.callback(forget_work, (overlay,))
        undo.callback(shutil.rmtree, overlay.changes, ignore_errors=True)
        yield overlay
