"""One snapshot restored several times at once, each into a PID namespace of its own."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import gpusnap
from gpusnap.compatibility import check_new_pids
from gpusnap.criu import Namespace
from gpusnap.errors import GpusnapError
from gpusnap.events import CriuNotified, Event
from gpusnap.hookspecs import hookimpl
from gpusnap.journal import entries
from gpusnap.nested import check_engine, check_namespace
from gpusnap.plugins import default_plugins
from gpusnap.recovery import recover
from gpusnap.repository import Snapshot, resolve
from gpusnap.restore import RestoredTarget, RestoreOptions, plan_restore
from gpusnap.target import alive, find_target, identity, inside_pid, pid_namespace, pids_in
from gpusnap.testing import SIM_VARIABLE
from gpusnap.types import Engine, Finding, ProcessId, Target
from tests.e2e.jobs import SLOW_US, STEPS, Job, Site, await_true
from tests.pids import kill

Restore = Callable[[], RestoredTarget]


class Saved(NamedTuple):
    """A program that was saved in the middle of its computing, and what it had logged."""

    job: Job
    log: str


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    site = Site.make(tmp_path_factory.mktemp("site"))
    job = Job.start(site, steps=STEPS, step_us=SLOW_US)
    with pytest.MonkeyPatch.context() as patch:
        set_variables(patch, site)
        gpusnap.create_checkpoint(job.pid, "one", leave_running=False)
    return Saved(job, job.log.read_text())


def set_variables(patch: pytest.MonkeyPatch, site: Site) -> None:
    for name in (SIM_VARIABLE, "GPUSNAP_REPO", "GPUSNAP_STATE_DIR"):
        patch.setenv(name, site.environment[name])


@pytest.fixture
def saved(once: Saved, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The program as it was right after it was saved; it is gone."""
    set_variables(monkeypatch, once.job.site)
    once.job.log.write_text(once.log)
    once.job.hurry.unlink(missing_ok=True)
    return once.job


@pytest.fixture
def restore(saved: Job) -> Iterator[Restore]:
    made: list[RestoredTarget] = []

    def run() -> RestoredTarget:
        made.append(gpusnap.restore_checkpoint("one", new_pids=True))
        return made[-1]

    yield run
    for target in made:
        end(target)


def end(target: RestoredTarget) -> None:
    for process in target.processes:
        if alive(process):
            kill(process.pid)
    await_true(lambda: not any(map(alive, target.processes)), "it is gone")


def init_of(target: RestoredTarget) -> int:
    assert target.init_pid is not None
    return target.init_pid


def gone(pid: int) -> bool:
    """No process, or one that waits for the machine's own init to take notice."""
    found = identity(pid)
    return found is None or not alive(found)


def test_three_at_once_come_to_the_same_result(saved: Job, restore: Restore) -> None:
    targets = [restore() for _ in range(3)]
    assert len({target.root_pid for target in targets}) == 3
    for target in targets:
        assert target.new_pids == ((saved.pid, target.root_pid),)
    saved.hurry.touch()
    for target in targets:
        await_true(lambda target=target: gone(init_of(target)), "it computes to its end")
    lines, expected = saved.log.read_text().splitlines(), saved.expected().splitlines()
    assert lines.count(expected[-1]) == 3
    assert set(lines) == set(expected)


def test_each_is_a_target_of_its_own(saved: Job, restore: Restore) -> None:
    first = restore()
    assert gpusnap.suspend(first.root_pid).claimed == (first.root_pid,)
    second, third = restore(), restore()
    in_use = {process.pid for process in gpusnap.processes(backend="simulated")}
    assert in_use == {second.root_pid, third.root_pid}, "the first is not on the device now"
    for target in (first, second, third):
        assert inside_pid(target.root_pid) == saved.pid
        assert pid_namespace(target.root_pid) != pid_namespace(os.getpid())
    os.kill(second.root_pid, signal.SIGKILL)
    await_true(lambda: gone(init_of(second)), "the namespace ends with its root")
    os.kill(init_of(third), signal.SIGKILL)
    await_true(lambda: gone(third.root_pid), "the root ends with the namespace")
    assert gpusnap.resume(first.root_pid).claimed == (first.root_pid,)
    assert saved.computes(), "the one that was suspended and resumed"


def test_saved_again_it_goes_by_the_pids_that_it_sees(saved: Job, restore: Restore) -> None:
    first = restore()
    again = gpusnap.create_checkpoint(first.root_pid, "again")
    manifest = again.manifest
    assert (manifest.target.pids, manifest.claimed) == ((saved.pid,), (saved.pid,))
    assert manifest.device_regions is not None
    assert {region.pid for region in manifest.device_regions.regions} == {saved.pid}
    assert saved.computes(), "it runs on after the checkpoint"
    end(first)
    same = gpusnap.restore_checkpoint("again")
    assert same.root_pid == saved.pid
    assert saved.computes()
    end(same)


def test_beside_one_that_has_its_pid(saved: Job, restore: Restore) -> None:
    same = gpusnap.restore_checkpoint("one")
    other = restore()
    assert same.root_pid == inside_pid(other.root_pid) == saved.pid
    end(same)
    assert saved.computes()


class Interference:
    """Does something at a stage of CRIU."""

    def __init__(self, stage: str, action: Callable[[], None]) -> None:
        self._stage, self._action = stage, action

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        if isinstance(event, CriuNotified) and event.script == self._stage:
            self._action()


def members() -> set[int]:
    """The processes of the restore under way, by its journal."""
    ((entry, _held),) = entries()
    return set(pids_in(pid_namespace(entry.processes[0].pid) or "").values())


def test_a_failure_leaves_nothing(saved: Job) -> None:
    seen: set[int] = set()

    def kill_root() -> None:
        seen.update(members())
        os.kill(max(seen, key=lambda pid: inside_pid(pid) == saved.pid), signal.SIGKILL)

    interference = Interference("post-restore", kill_root)
    plugins = default_plugins()
    plugins.register(interference, "interference")
    try:
        with pytest.raises(GpusnapError):
            gpusnap.restore_checkpoint("one", new_pids=True)
    finally:
        plugins.unregister(interference)
    assert len(seen) > 1
    assert all(map(gone, seen))
    assert entries() == ()


@pytest.mark.parametrize("point", ["criu:post-restore", "started:restore"])
def test_a_killed_gpusnap_leaves_nothing(saved: Job, tmp_path: Path, point: str) -> None:
    report, arguments = tmp_path / "report", ("restore", "one", "--new-pids")
    saved.site.run("-m", "tests.e2e.faults", point, "gpusnap", report, *arguments)
    assert report.read_text().isdigit(), "the point was not reached"
    ((entry, held),) = entries()
    assert not held
    await_true(lambda: not any(map(alive, entry.processes)), "all inside ends with gpusnap")
    (recovered,) = recover()
    assert not recovered.failed
    assert entries() == ()


def test_it_counts_as_restored_only_once_it_is_let_go(
    saved: Job, restore: Restore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then a gpusnap that dies takes it along, and a recovery must not say otherwise."""
    noted: list[bool] = []
    let_go = Namespace.let_go

    def note() -> None:
        ((entry, _held),) = entries()
        noted.append(entry.resumed)

    def note_and_let_go(made: Namespace) -> None:
        note()
        let_go(made)

    monkeypatch.setattr(Namespace, "let_go", note_and_let_go)
    interference = Interference("post-resume", note)
    plugins = default_plugins()
    plugins.register(interference, "interference")
    try:
        restore()
    finally:
        plugins.unregister(interference)
    assert noted == [False, True]


def test_a_plan_of_it(saved: Job) -> None:
    plan = plan_restore("one", options=RestoreOptions(new_pids=True))
    assert plan.criu_command[:4] == ("unshare", "--pid", "--mount-proc", "--fork")
    assert not [finding for finding in plan.findings if finding.severity == "error"]


def codes(findings: Iterable[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def test_what_cannot_be_restored_this_way(saved: Job) -> None:
    snapshot = resolve("one")
    assert codes(check_new_pids(snapshot)) == set()
    by_plugin = msgspec.structs.replace(snapshot.manifest, engine=Engine.CRIU_PLUGIN)
    assert codes(check_new_pids(Snapshot(snapshot.path, by_plugin))) == {"new-pids-engine"}
    root = msgspec.structs.replace(snapshot.manifest.target.root, id=ProcessId(1, 1))
    target = Target(processes=(root,))
    of_init = msgspec.structs.replace(snapshot.manifest, target=target, claimed=())
    assert codes(check_new_pids(Snapshot(snapshot.path, of_init))) == {"new-pids-init"}


def test_a_namespace_of_somebody_else_is_refused() -> None:
    command = ["unshare", "--pid", "--mount-proc", "--fork", "sleep", "600"]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            await_true(lambda: children.read_text() != "", "it starts")
            target = find_target(int(children.read_text()))
            assert codes(check_namespace(target)) == {"pid-namespace"}
            assert "pid-namespace" in codes(gpusnap.preflight(target.root.pid))
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_criu_s_plugin_does_not_work_inside(saved: Job, restore: Restore) -> None:
    target = find_target(restore().root_pid)
    assert codes(check_namespace(target)) == codes(check_engine(target, Engine.DRIVER)) == set()
    assert codes(check_engine(target, Engine.CRIU_PLUGIN)) == {"new-pids-engine"}
