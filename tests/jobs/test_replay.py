"""One snapshot, restored again and again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gpusnap
from gpusnap.cli._main import run
from gpusnap.criu import OpenFile
from gpusnap.errors import BusyError, GpusnapError, NotFoundError, UsageError
from gpusnap.jobs.originals import Originals, Written, check_outputs, written_files
from gpusnap.jobs.replaying import Output, Replayed, ReplayedRun, Report, _groups, replay
from gpusnap.repository import open_snapshot
from tests.e2e.jobs import await_true, start_detached

pytestmark = pytest.mark.usefixtures("root")

PROGRAM = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
log = open(folder / "log", "ab", buffering=0)
table = open(folder / "table", "w+b", buffering=0)
log.write(b"before\\n")
table.write(b"before\\n")
(folder / "ready").touch()
while not (folder / "go").exists():
    time.sleep(0.005)
runs = folder / "runs"  # nobody puts this one back
number = int(runs.read_text()) + 1
runs.write_text(str(number))
rare = number == 2
log.write(b"after\\n")
table.write(b"rare\\n" if rare else b"usual\\n")
(folder / "result").write_text("x")
if (folder / "hang").exists():
    time.sleep(600)
sys.exit(5 if rare else 4)
"""


class Site:
    """A program that was saved as it waited, and its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        start_detached([sys.executable, "-c", PROGRAM, str(folder)], folder / "pid", {**os.environ})
        self.pid = int((folder / "pid").read_text())
        await_true((folder / "ready").exists, "the program waits")
        try:
            gpusnap.create_checkpoint(self.pid, folder / "repository/one")
            self.snapshot = open_snapshot(folder / "repository/one")
            with pytest.raises(BusyError, match=r"which was saved, still runs and may write"):
                replay(self.snapshot.path)
        finally:
            os.kill(self.pid, signal.SIGKILL)
        await_true(lambda: not Path(f"/proc/{self.pid}").exists(), "it is gone")

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def begin(self) -> None:
        """Let the program go on, from now on after each restore."""
        for name in ("result", "hang"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "log").write_text("before\n")
        (self.folder / "table").write_text("before\nwhat came after the snapshot\n")
        (self.folder / "runs").write_text("0")
        (self.folder / "go").touch()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("site")
        patch.setenv("GPUSNAP_STATE_DIR", str(folder / "state"))
        yield Site(folder)


@pytest.fixture
def site(saved: Site) -> Site:
    saved.begin()
    return saved


def test_runs_are_compared(site: Site) -> None:
    replayed = replay(site.snapshot.path, times=3)
    assert [run.exit_code for run in replayed.runs] == [4, 5, 4]
    assert not replayed.identical
    assert replayed.groups == ((1, 3), (2,))
    assert {Path(each.path).name for each in replayed.runs[0].outputs} == {"log", "table"}
    assert site.text("log") == "before\nafter\n", "put back each time"
    assert site.text("table") == "before\nusual\n"


def test_until_a_condition_is_met(site: Site) -> None:
    until = '[ "$GPUSNAP_REPLAY_EXIT_CODE" = 5 ] && [ "$GPUSNAP_REPLAY_RUN" = 2 ]'
    replayed = replay(site.snapshot.path, times=9, until=until, outputs=[site.folder / "result"])
    assert (replayed.stopped, len(replayed.runs)) == (True, 2)
    assert {each.path for run in replayed.runs for each in run.outputs} == {
        str(site.folder / "result")
    }
    assert site.text("table") == "before\nrare\n", "what the run left can be looked at"


def test_a_run_that_hangs_is_killed(site: Site) -> None:
    (site.folder / "hang").touch()
    until = f"[ -z $GPUSNAP_REPLAY_EXIT_CODE ] && rm {site.folder}/hang"
    replayed = replay(
        site.snapshot.path, until=until, outputs=[site.folder / "log"], run_timeout_us=300_000
    )
    (only,) = replayed.runs
    assert (only.timed_out, only.exit_code, replayed.stopped) == (True, None, True)


@pytest.mark.parametrize(
    ("outputs", "until", "error", "words"),
    [
        (("nowhere",), None, NotFoundError, "nowhere was there after none of the runs"),
        (None, "no-such-command", UsageError, "cannot be run"),
    ],
)
def test_misuse_that_shows_later(
    site: Site, outputs: tuple[str] | None, until: str | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        replay(site.snapshot.path, times=1, outputs=outputs, until=until)


def command(*arguments: object) -> int:
    return run([str(each) for each in arguments])


def test_json(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (site.folder / "runs").write_text("3")
    until = "echo seen"
    assert command("replay", site.snapshot.path, "--times", 2, "--until", until, "--json") == 0
    lines: list[Any] = list(map(msgspec.json.decode, capsys.readouterr().out.splitlines()))
    (ended,) = (line["run"] for line in lines if line["message_type"] == "run")
    assert (ended["number"], ended["exit_code"]) == (1, 4)
    assert lines[-1]["result"]["runs"] == [ended]
    assert lines[-1]["result"]["identical"] is True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_replay_that_is_ended_ends_the_run(site: Site, number: signal.Signals) -> None:
    (site.folder / "hang").touch()
    arguments = ["-m", "gpusnap", "replay", str(site.snapshot.path), "--json"]
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        await_true((site.folder / "result").exists, "it runs")
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode in {128 + number, -number}
    assert number == signal.SIGKILL or "Interrupted by SIGINT" in said
    needle = str(site.folder).encode()
    # The kernel ends what a killed gpusnap has left a moment later
    await_true(lambda: not _living(needle), "nothing is left of the run")


def _living(needle: bytes) -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if _holds(path, needle)]


def _holds(path: Path, needle: bytes) -> bool:
    try:
        return needle in path.read_bytes() and b"sys.exit(5 if rare" in path.read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("times", [0, -1, True, 1.5, "3"])
def test_no_number_of_times(times: Any) -> None:
    with pytest.raises(UsageError, match="cannot be replayed"):
        replay("nothing", times=times)


def test_no_number_of_times_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("replay", "nothing", "--times", 0) == UsageError.exit_code
    assert "Invalid value for '--times'" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/tmp", "a\0b"])
def test_no_output(path: str) -> None:
    with pytest.raises(UsageError, match="is no file"):
        check_outputs([path])


def test_files_are_put_back(tmp_path: Path) -> None:
    there, gone, new = (tmp_path / name for name in ("there", "gone", "new"))
    there.write_text("0123456789")
    there.chmod(0o640)
    gone.write_text("gone")
    with Originals({there: 4, gone: 100, new: None}) as originals:
        there.write_text("something else")
        there.chmod(0o600)
        gone.unlink()
        new.write_text("new")
        originals.put_back()
        assert (there.read_text(), there.stat().st_mode & 0o777) == ("0123", 0o640)
        assert gone.read_text() == "gone"
        assert not new.exists()


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    for path in (file, other):
        path.write_text(path.name)
    with Originals({file: None}) as originals:
        file.unlink()
        file.symlink_to(other)
        with pytest.raises(GpusnapError, match="cannot be put back before each run"):
            originals.put_back()
    assert other.read_text() == "other"


@pytest.mark.parametrize("name", ["../table", "link", "relative"])
def test_a_snapshot_that_names_a_file_oddly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Site, name: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "table").touch()
    (folder / "link").symlink_to(tmp_path / "table")
    path = name if name == "relative" else f"{folder}/{name}"
    file = OpenFile(path=path, flags=os.O_WRONLY, position=0, size=0)
    monkeypatch.setattr("gpusnap.jobs.originals.open_files", lambda _images: (file,))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relative").touch()
    assert written_files(saved.snapshot) == {}


def test_open_files_of_a_snapshot(saved: Site) -> None:
    log, table = saved.folder / "log", saved.folder / "table"
    assert written_files(saved.snapshot) == {
        log: Written(path=log, size=None, end=7),
        table: Written(path=table, size=7, end=7),
    }


def made(number: int, code: int | None, digest: str | None = None) -> ReplayedRun:
    return ReplayedRun(
        number=number,
        exit_code=code,
        timed_out=False,
        outputs=(Output("out", digest),),
        microseconds=1,
    )


def test_groups() -> None:
    runs = [made(1, 0), made(2, 1, "a"), made(3, 1, "a"), made(4, 1, "b")]
    assert _groups(runs) == ((2, 3), (1,), (4,))


@pytest.mark.parametrize(
    ("codes", "until", "said"),
    [
        ((0, 0), None, ["2 runs: identical in exit code and 1 output"]),
        ((0, 1, 0), None, ["Alike: runs 1, 3", "Different from them: 2"]),
        ((0, 1), None, ["No two runs alike"]),
        (
            (0,),
            "true",
            ["Condition met: in run 1", "1 run: identical in exit code and 1 output"],
        ),
        (
            (0, 1, 1),
            "false",
            ["Condition met: not in 3 runs", "Alike: runs 2, 3", "Different from them: 1"],
        ),
    ],
)
def test_words(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    codes: tuple[int, ...],
    until: str | None,
    said: list[str],
) -> None:
    runs = tuple(made(number, code) for number, code in enumerate(codes, 1))
    groups, stopped = _groups(runs), until == "true"

    def replayed(*_: object, report: Report, **__: object) -> Replayed:
        for each in runs:
            report(each)
        return Replayed(
            snapshot="x", runs=runs, stopped=stopped, identical=len(groups) == 1, groups=groups
        )

    monkeypatch.setattr("gpusnap.cli.replay.replay_snapshot", replayed)
    good = stopped if until else len(groups) == 1
    assert command("replay", "x", *(["--until", until] if until else [])) == (0 if good else 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"run 1: exit code {codes[0]} after 1 us; out missing"
    assert lines[len(runs) :] == said
