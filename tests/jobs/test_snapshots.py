"""The snapshots of a run: their names, parents and lives; no process is saved here."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpusnap.device_map import NO_CHOICE
from gpusnap.errors import GpusnapError, IntegrityError, NotFoundError, UsageError
from gpusnap.events import CriuNotified
from gpusnap.jobs import returning, snapshots
from gpusnap.jobs.outputs import Length
from gpusnap.jobs.record import Run, RunOptions, write_run
from gpusnap.jobs.returning import bring_back
from gpusnap.jobs.snapshots import Taken, checkpoint_options, newest_number, read_ledger, take
from gpusnap.plan import CheckpointOptions
from gpusnap.plugins import Plugins
from gpusnap.repository import Repository, Snapshot
from gpusnap.restore import RestoreOptions
from gpusnap.types import Finding, ProcessId, Severity
from tests.datapath.memory import Memory
from tests.datapath.program import PAGE
from tests.endings import reaped_at_a_look
from tests.repository import samples


class Place:
    """A run whose checkpoints are made up."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.pid = pid
        self.folder = folder / "job"
        self.folder.mkdir()
        (self.folder / "stdout").write_text("so far\n")
        self.repository = Repository.create(folder / "repository")
        self.plugins = Plugins()
        self.asked: list[CheckpointOptions] = []
        self.memory = Memory(b"memory" * PAGE)
        self.refusal: Callable[[CheckpointOptions], GpusnapError | None] = lambda _: None
        self.begin(RunOptions())

    def begin(self, options: RunOptions) -> None:
        path = str(self.repository.path)
        run = Run(name="job", directory="/", repository=path, boot_id="", options=options)
        self.run = run
        write_run(self.folder, run)

    def checkpoint(
        self, pid: int, path: Path, *, options: CheckpointOptions, plugins: Plugins
    ) -> Snapshot:
        self.asked.append(options)
        error = self.refusal(options)
        if error is not None:
            raise error
        plugins.emit(CriuNotified(script="post-dump"))
        return samples.take_memory(self.repository, path.name, self.memory)

    def take(self, **changes: object) -> Snapshot:
        return take(self.folder, self.pid, plugins=self.plugins, **changes)  # type: ignore[arg-type]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.repository.snapshots()]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with subprocess.Popen(["sleep", "60"]) as process:
        place = Place(tmp_path, process.pid)
        monkeypatch.setattr(snapshots, "run_checkpoint", place.checkpoint)
        yield place
        process.kill()


def test_names_rise_and_only_those_wanted_are_kept(place: Place) -> None:
    samples.take(place.repository, "another")
    place.begin(RunOptions(keep_last=2, tag=("best",)))
    for _ in range(4):
        place.take(tags=("mine",))
    assert sorted(place.names) == ["another", "job-000003", "job-000004"]
    assert [taken.name for taken in read_ledger(place.folder).taken] == ["job-000003", "job-000004"]
    assert place.asked[0].tags == ("run:job", "best", "mine")
    (stdout,) = read_ledger(place.folder).taken[-1].lengths
    assert (Path(stdout.path).name, stdout.size) == ("stdout", 7)


def test_a_number_that_another_run_has_used_is_passed_over(place: Place) -> None:
    samples.take(place.repository, "job-000007")
    assert place.take().name == "job-000008"
    assert place.names == ["job-000007", "job-000008"], "what is not the run's own stays"


def test_what_a_killed_gpusnap_left_is_removed(place: Place) -> None:
    (place.repository.path / ".draft-job-000001").mkdir()
    place.take()
    assert not list(place.repository.path.glob(".draft*"))


def test_changes_are_for_one_snapshot(place: Place) -> None:
    place.take(leave_running=False, timeout_us=5)
    place.take()
    assert [(each.leave_running, each.timeout_us) for each in place.asked] == [
        (False, 5),
        (True, RunOptions().timeout_us),
    ]


@pytest.mark.parametrize(
    ("incremental", "tried"), [(None, [True, False]), (True, [True]), (False, [False])]
)
def test_without_a_parent_where_it_cannot_be(
    place: Place, incremental: bool | None, tried: list[bool]
) -> None:
    place.begin(RunOptions(incremental=incremental))
    place.refusal = lambda options: UsageError("by CRIU") if options.saving.incremental else None
    if incremental:
        with pytest.raises(UsageError, match="by CRIU"):
            place.take()
    else:
        place.take()
    assert [options.saving.incremental for options in place.asked] == tried


def test_a_failure_leaves_the_run_as_it_was(place: Place) -> None:
    place.take()
    place.refusal = lambda _options: GpusnapError("the disk is full")
    with pytest.raises(GpusnapError, match="the disk is full"):
        place.take()
    assert newest_number(place.folder, place.run) == 1
    place.refusal = lambda _options: None
    assert place.take().name == "job-000003"


def test_options_that_do_not_go_together(place: Place) -> None:
    place.begin(RunOptions(compress="paper"))
    with pytest.raises(UsageError, match="'paper' is no compression"):
        checkpoint_options(place.run, incremental=False)


class Heard:
    def __init__(self) -> None:
        self.passed: list[str] = []
        self.cleared_once = False

    def cleared(self) -> None:
        self.cleared_once = True

    def passed_over(self, taken: Taken, error: GpusnapError) -> None:
        self.passed.append(f"{taken.name}: {error.text}")

    def cutting(self, lengths: tuple[Length, ...]) -> None:
        raise AssertionError(lengths)

    def restored(self, root: ProcessId, init: ProcessId | None) -> None:
        raise AssertionError((root, init))


def spoil(pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[PAGE] ^= 1
    pack.write_bytes(data)


def test_damaged_snapshots_are_passed_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.begin(RunOptions(keep_last=4))
    for _ in range(4):
        place.take()
    (place.repository.path / "job-000004/manifest.json").write_text("{}")
    spoil(place.repository.path / "job-000003/regions/000.pack")
    restored = []

    def restore(path: Path, **_: object) -> None:
        assert path.name != "job-000003", "its files would have been cut"
        if path.name == "job-000002":
            raise IntegrityError("a chunk is damaged")
        restored.append(path.name)

    monkeypatch.setattr(returning, "run_restore", restore)
    monkeypatch.setattr(returning, "_pids_are_taken", lambda *_: False)
    monkeypatch.setattr(returning, "recover", lambda *_, **__: ())
    heard = Heard()
    bring_back(place.folder, place.plugins, NO_CHOICE, heard)
    assert (restored, heard.cleared_once) == (["job-000001"], True)
    first, second, third = heard.passed
    assert first.startswith("job-000004: ")
    assert second.startswith("job-000003: ")
    assert third == "job-000002: a chunk is damaged"


def test_known_damage_is_not_inherited_and_costs_no_good_snapshot(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.begin(RunOptions(keep_last=1))
    place.take()
    place.take(leave_running=False)
    assert len(place.names) == 2, "the job is gone, and the last one not yet read again"
    monkeypatch.setattr(returning, "run_restore", lambda *_, **__: None)
    monkeypatch.setattr(returning, "_pids_are_taken", lambda *_: False)
    monkeypatch.setattr(returning, "recover", lambda *_, **__: ())
    spoil(place.repository.path / "job-000002/regions/000.pack")
    heard = Heard()
    bring_back(place.folder, place.plugins, NO_CHOICE, heard)
    assert len(heard.passed) == 1
    place.take()
    assert str(place.asked[-1].parent) == str(place.repository.path / "job-000001")
    place.take()
    assert [name for name in sorted(place.names) if name != "job-000002"] == [
        "job-000001",  # the newest that is known to be intact
        "job-000004",
    ]


def test_a_repository_that_is_away_does_not_make_the_job_begin_anew(place: Place) -> None:
    place.take()
    place.repository.path.rename(place.repository.path.with_name("elsewhere"))
    place.repository.path.mkdir()
    with pytest.raises(GpusnapError, match="snapshots of run job cannot be reached") as caught:
        bring_back(place.folder, place.plugins, NO_CHOICE, Heard())
    assert "Mount" in str(caught.value.cure)


def test_a_device_that_is_away_does_not_make_older_snapshots_be_tried(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restore(_path: Path, **_: object) -> None:
        raise NotFoundError("There is no device D0")

    place.take()
    monkeypatch.setattr(returning, "run_restore", restore)
    monkeypatch.setattr(returning, "_pids_are_taken", lambda *_: False)
    monkeypatch.setattr(returning, "recover", lambda *_, **__: ())
    with pytest.raises(NotFoundError, match="no device D0"):
        bring_back(place.folder, place.plugins, NO_CHOICE, Heard())


def test_a_pid_that_becomes_free_while_it_is_looked_at_is_not_taken(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job comes back with its own PIDs once init has reaped what was left of it."""
    pid = reaped_at_a_look(monkeypatch)
    taken = Finding(code="pid-taken", severity=Severity.ERROR, text="It is a zombie", pid=pid)
    plans = [SimpleNamespace(findings=(taken,)), SimpleNamespace(findings=())]
    monkeypatch.setattr(returning, "plan_restore", lambda *_, **__: plans.pop(0))
    monkeypatch.setattr(returning, "_REAPED_WITHIN_S", 60)
    snapshot = SimpleNamespace(path=place.repository.path / "job-000001")
    assert not returning._pids_are_taken(snapshot, RestoreOptions(), place.plugins)  # type: ignore[arg-type]
    assert not plans


def test_without_a_snapshot_nothing_comes_back(place: Place) -> None:
    assert bring_back(place.folder, place.plugins, NO_CHOICE, Heard()) is None
