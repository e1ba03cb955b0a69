"""Several continuations of one snapshot, each with its values, its device and its folder."""

import re
import shutil
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
from gpusnap.errors import GpusnapError, IncompatibleError, NotFoundError, UsageError
from gpusnap.jobs.branching import Branch, _points, branch
from gpusnap.jobs.privacy import changes_of, check_private
from gpusnap.repository import open_snapshot
from tests.e2e.jobs import Site, await_true
from tests.e2e.test_new_pids import set_variables
from tests.inprocess.programs import Program

PAGE = Path(__file__).parents[2] / "docs/how-to/replay-and-branch.md"

pytestmark = pytest.mark.usefixtures("root")

SOURCE = """
from pathlib import Path
from gpusnap.testing.device import SimulatedDevice

site = Path({site!r})
work = site / "work"
os.dup2(os.open(site / "errors", os.O_WRONLY | os.O_APPEND), 2)
table = open(work / "table", "w+b", buffering=0)
table.write(b"before\\n")
buffer = SimulatedDevice.open(0).allocate(4096)
buffer.copy_in(b"on the device")
result = gpusnap.checkpoint_self("one", kill=True)
number, code = result.overrides["branch"], result.overrides["code"]
(site / f"started-{{number}}").write_text(result.devices[0])
wait_for(site / "started-1")
wait_for(site / "started-2")
table.write(f"branch {{number}}, {{buffer.copy_out()[:13].decode()}}\\n".encode())
(work / "model.new").write_text(number)
(work / "model.new").replace(work / "model")
(work / "old").unlink(missing_ok=True)
if code == "hang":
    say("hangs")
    time.sleep(600)
sys.exit(int(code))
"""


@pytest.fixture(scope="module")
def module_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A program saved itself; its table has grown since."""
    site = Site.make(tmp_path_factory.mktemp("site"), devices=2)
    work = site.folder / "work"
    work.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        set_variables(patch, site)
        program = Program.start(site, SOURCE.format(site=str(site.folder)))
        try:
            await_true((site.repository / "one").exists, "it saves itself")
            await_true(lambda: not Path(f"/proc/{program.pid}").exists(), "it is gone")
        finally:
            program.end()
        yield site


@pytest.fixture
def site(module_site: Site) -> Site:
    for path in module_site.folder.glob("started-*"):
        path.unlink()
    for path in module_site.folder.glob("work.branch-*"):
        shutil.rmtree(path)
    work = module_site.folder / "work"
    (work / "table").write_text("before\n")
    (work / "model").write_text("of the job")
    (work / "old").write_text("old")
    return module_site


def test_each_has_values_a_device_and_a_folder(site: Site) -> None:
    work, reported = site.folder / "work", list[Branch]()
    (work / "table").write_text("before\nwhat came after the snapshot\n")
    branched = branch(
        "one", {"code": ("0", "3", "0")}, private=[work], report=reported.append
    )  # the third has to wait
    assert [each.exit_code for each in branched.branches] == [0, 3, 0]
    assert not branched.succeeded
    assert sorted(reported, key=lambda each: each.number) == list(branched.branches)
    assert branched.branches[1].overrides == {"code": "3", "branch": "2"}
    uuids = [device.uuid for device in gpusnap.devices(backend="simulated")]
    used = [(site.folder / f"started-{number}").read_text() for number in (1, 2)]
    assert used == uuids
    assert [each.devices for each in branched.branches[:2]] == [("0",), ("1",)]
    for each in branched.branches:
        (own,) = map(Path, each.folders)
        assert own == changes_of(work, each.number)
        assert (own / "table").read_text() == f"before\nbranch {each.number}, on the device\n"
        assert (own / "model").read_text() == str(each.number)
    assert (work / "model").read_text() == "of the job"
    assert (work / "old").exists()
    assert not list(site.folder.glob(".*.work"))
    with pytest.raises(GpusnapError, match=r"work\.branch-1 is there already"):
        branch("one", {"code": ("0",)}, private=[work])


def test_the_example_of_the_page(site: Site, tmp_path: Path) -> None:
    """The unchanged branch ends as the job did; the other one differs from the next step on."""
    source = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "train.py").write_text(source)
    environment = {**site.environment, "PYTHONPATH": str(PAGE.parents[2])}
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=environment, check=True)
    branched = branch("at-50", {"rate": ("0.1", "0.5")}, per_device=2, private=[tmp_path])
    assert branched.succeeded
    whole = (tmp_path / "losses").read_text().splitlines()
    same, other = (
        Path(each.folders[0], "losses").read_text().splitlines() for each in branched.branches
    )
    assert same == whole
    # The loss of a step is taken before the step: the first with another rate shows in the next
    assert [here != there for here, there in zip(whole, other, strict=True)].index(True) == 52


def test_command_line(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (site.folder / "started-2").touch()
    assert run(["branch", "one", "--grid", "code=0", "--devices", "1", "--json"]) == 0
    lines: list[Any] = list(map(msgspec.json.decode, capsys.readouterr().out.splitlines()))
    (ended,) = (line["branch"] for line in lines if line["message_type"] == "branch")
    assert (ended["exit_code"], ended["devices"]) == (0, ["1"])
    assert lines[-1]["result"]["branches"] == [ended]
    assert (site.folder / "work/model").read_text() == "1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_with_gpusnap_all_end(site: Site, number: signal.Signals) -> None:
    log = site.folder / "log"
    before = log.read_text().count("hangs")
    arguments = ["branch", "one", "--grid", "code=hang,hang", "--json", "--private"]
    with subprocess.Popen(
        [sys.executable, "-m", "gpusnap", *arguments, str(site.folder / "work")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            await_true(lambda: log.read_text().count("hangs") == before + 2, "both run")
            assert _overlays(site)
            if number == signal.SIGKILL:
                _can_be_saved(site)
        except BaseException:
            process.kill()
            raise
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode in {128 + number, -number}, said
    # The kernel ends what a killed gpusnap has left a moment later
    await_true(lambda: not (gpusnap.processes(backend="simulated") or _overlays(site)), "all end")


def _can_be_saved(site: Site) -> None:
    """A branch is a target like any other, though it ends with gpusnap."""
    pid = min(process.pid for process in gpusnap.processes(backend="simulated"))
    saved = gpusnap.create_checkpoint(pid, "of-a-branch")
    assert saved.manifest.claimed == open_snapshot(site.repository / "one").manifest.claimed


def _overlays(site: Site) -> list[Path]:
    """Processes that see the private folder of a branch."""
    wanted = f"{site.folder}/work.branch-".encode()
    return [path for path in Path("/proc").glob("[0-9]*/mountinfo") if wanted in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_those_that_cannot_be_restored(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise GpusnapError("CRIU is not in the mood")

    monkeypatch.setattr("gpusnap.jobs.adoption.run_restore", refuse)
    work, reported = site.folder / "work", list[Branch]()
    branched = branch(
        "one", {"code": ("0", "0")}, devices=[0], private=[work], report=reported.append
    )
    assert branched.branches == tuple(reported)
    assert [each.number for each in reported] == [1, 2]
    assert {each.failure for each in reported} == {"CRIU is not in the mood"}
    assert not branched.succeeded
    assert not list(site.folder.glob(".*.work"))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"devices": [7], "private": ["."]}, NotFoundError, "There is no device '7'"),
        ({"devices": [0, 0], "private": ["."]}, UsageError, "named twice"),
        ({"per_device": 0}, UsageError, "0 branches cannot run"),
        ({}, IncompatibleError, r"would overwrite .*table for each other"),
        ({"private": ["/no/folder"]}, NotFoundError, "There is no folder"),
    ],
)
def test_misuse(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    arguments: Any,
    error: type[Exception],
    words: str,
) -> None:
    monkeypatch.chdir(site.folder / "work")
    with pytest.raises(error, match=words):
        branch("one", {"code": ("0", "0")}, **arguments)


@pytest.mark.parametrize(
    "grid", [{}, {"lr": ()}, {"lr": "0.1"}, {"branch": ("1",)}, {"": ("1",)}, {"lr": (0.1,)}]
)
def test_no_grid(grid: Any) -> None:
    with pytest.raises(UsageError):
        _points(grid)


def test_every_combination_is_a_branch() -> None:
    points = _points({"lr": ("1", "2"), "tag": ("a", "b")})
    assert [(point["lr"], point["tag"], point["branch"]) for point in points] == [
        ("1", "a", "1"),
        ("1", "b", "2"),
        ("2", "a", "3"),
        ("2", "b", "4"),
    ]


@pytest.mark.parametrize("typed", ["lr", "lr=", "=1", "lr=1,,2"])
def test_no_grid_typed(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["branch", "one", "--grid", typed]) == UsageError.exit_code
    assert "is no list of values such as lr=1e-4,3e-4" in capsys.readouterr().err


def test_a_name_typed_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["branch", "one", "--grid", "lr=1", "--grid", "lr=2"]) == UsageError.exit_code
    assert "is a second list for lr" in capsys.readouterr().err


def test_no_private_folder(tmp_path: Path) -> None:
    odd, below = tmp_path / "a,b", tmp_path / "c/d"
    odd.mkdir()
    below.mkdir(parents=True)
    for folder in (odd, "/"):
        with pytest.raises(UsageError, match="cannot be private"):
            check_private([folder])
    with pytest.raises(UsageError, match="is in another private folder"):
        check_private([below.parent, below])
    assert check_private([below, f"{below}/../d"]) == (below,)
