"""What a job sees of gpusnap, and gpusnap's user of the job: as if it were run bare."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpusnap.errors import BusyError, GpusnapError, NotFoundError, UsageError
from gpusnap.jobs.opening import Beginning, Request, open_run
from gpusnap.jobs.record import (
    Run,
    RunOptions,
    RunState,
    boot_id,
    read_run,
    run_folder,
    supervising,
    write_run,
)
from gpusnap.jobs.reports import Happening, Report
from gpusnap.jobs.starting import CommandNotExecutableError, choose_streams, start
from gpusnap.jobs.supervisor import supervise
from gpusnap.target import identity
from tests.jobs.running import Place

SAYS = 'echo "$0: $GPUSNAP_RUN"; echo trouble >&2; exit 7'


def ended_run(folder: Path, code: int) -> None:
    run = Run(name="job", command=("false",), directory="/", repository="/r", boot_id="")
    write_run(folder, msgspec.structs.replace(run, state=RunState.ENDED, exit_code=code))


def test_output_arguments_and_exit_code_pass_through(place: Place) -> None:
    folder = place.data / "runs/job"
    ended_run(folder, 3)
    ran = place.run("run", "--name", "job", "--fresh", "--json", "sh", "-c", SAYS, "--option")
    assert (ran.returncode, ran.stdout) == (7, f"--option: {folder}\n")
    *others, last = ran.stderr.splitlines()
    assert "trouble" in others
    assert msgspec.json.decode(last)["report"]["exit_code"] == 7
    run = read_run(folder)
    assert (run.state, run.exit_code, run.command[-1]) == (RunState.ENDED, 7, "--option")


def test_signals_pass_through(place: Place) -> None:
    script = "trap 'kill -KILL $$' TERM; echo ready; while :; do sleep 0.05; done"
    gpusnap = place.start("run", "--restart", 5, "--", "sh", "-c", script)
    assert gpusnap.stdout is not None
    assert gpusnap.stdout.readline() == "ready\n"
    gpusnap.send_signal(signal.SIGTERM)
    _, err = gpusnap.communicate(timeout=60)
    assert gpusnap.returncode == 128 + signal.SIGKILL, "an end that was asked for is no crash"
    assert "brought back" not in err


def test_a_command_that_is_not_there(place: Place) -> None:
    ran = place.run("run", "--name", "job", "--", place.site.folder / "nothing")
    assert (ran.returncode, ran.stdout) == (127, "")
    assert ran.stderr.startswith("gpusnap: There is no command ")
    assert not (place.data / "runs/job").exists(), "a run that never began leaves nothing"


@pytest.mark.parametrize("mode", [0o600, 0o700])
def test_what_cannot_be_executed(tmp_path: Path, mode: int) -> None:
    program = tmp_path / "program"
    program.write_text("no program\n")
    program.chmod(mode)
    run = Run(name="job", command=(str(program),), directory="/", repository="/", boot_id="")
    with pytest.raises(CommandNotExecutableError, match="cannot be executed") as caught:
        start(run, tmp_path, choose_streams())
    assert caught.value.exit_code == 126


def on_terminal(place: Place, *arguments: str) -> tuple[int, int]:
    """Start the command line on a terminal of its own; its PID, and the terminal's other end."""
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "gpusnap", *arguments]
        os.execve(command[0], command, place.environment)  # noqa: S606
    return pid, terminal


def test_a_terminal_is_the_jobs_own(place: Place) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && echo ready; exec sleep 60"
    pid, terminal = on_terminal(place, "run", "--name", "job", "--", "sh", "-c", script)
    read_until(terminal, b"ready\r\n")
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
    assert read_run(place.data / "runs/job").exit_code == 130


def read_until(terminal: int, words: bytes) -> None:
    text = b""
    while words not in text:
        text += os.read(terminal, 4096)


def test_a_terminal_takes_over_a_job_that_began_without_one(place: Place) -> None:
    script = "trap 'echo bye; exit 3' INT; echo ready; while :; do sleep 0.05; done"
    gpusnap = place.start("run", "--name", "job", "--", "sh", "-c", script)
    assert gpusnap.stdout is not None
    gpusnap.stdout.readline()
    gpusnap.kill()
    gpusnap.wait()
    pid, terminal = on_terminal(place, "run", "--name", "job")
    read_until(terminal, b"Run job goes on")
    os.write(terminal, b"\x03")
    read_until(terminal, b"bye\r\n")
    # The exit code of a process that is no child is told by Linux 6.15 and later
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in {1, 3}
    os.close(terminal)


def test_a_watched_job_runs_on(place: Place) -> None:
    with subprocess.Popen(["sleep", "600"]) as job:
        pid, terminal = on_terminal(place, "watch", str(job.pid))
        read_until(terminal, b" goes on with process ")
        os.write(terminal, b"\x03")
        read_until(terminal, b"The job runs on without gpusnap")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
        os.close(terminal)
        assert job.poll() is None
        job.kill()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSNAP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GPUSNAP_REPO", str(tmp_path / "repository"))
    return tmp_path / "data"


REPORTS: list[Report] = []


def ask(**wanted: object) -> int:
    REPORTS.clear()
    return supervise(Request(**wanted), REPORTS.append)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ({}, UsageError, "There is no command to run"),
        ({"name": "job"}, NotFoundError, "There is no run job"),
        ({"name": "a/b", "command": ("true",)}, UsageError, "cannot be the name of a run"),
        ({"name": "job", "pid": 1 << 30}, NotFoundError, "No process has PID"),
        (
            {"command": ("true",), "options": {"tag": ("a b",)}},
            UsageError,
            "The tag 'a b' holds a space",
        ),
        (
            {"command": ("true",), "options": {"keep_within": "long"}},
            UsageError,
            "'long' is not an age",
        ),
    ],
)
def test_what_can_never_be(
    data: Path, wanted: dict[str, object], error: type[GpusnapError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        ask(**wanted)
    assert caught.value.cure or error is NotFoundError
    assert not [*data.rglob("*.lock")], "a run that never began leaves nothing"


def test_a_name_that_a_living_gpusnap_uses(data: Path) -> None:
    with (
        supervising(run_folder("job")),
        pytest.raises(BusyError, match="Another gpusnap supervises the run job"),
    ):
        ask(name="job", command=("true",))


def test_a_run_folder_that_cannot_be_written(data: Path) -> None:
    data.write_text("a file in the way\n")
    with pytest.raises(GpusnapError, match="cannot be written to: Not a directory") as caught:
        ask(name="job", command=("true",))
    assert "GPUSNAP_DATA_DIR" in str(caught.value.cure)


def test_a_run_that_has_ended(data: Path) -> None:
    ended_run(run_folder("job"), 3)
    assert ask(name="job") == 3
    assert ask(name="job", command=("false",)) == 3
    assert [report.happening for report in REPORTS] == [Happening.ENDED]
    with pytest.raises(UsageError, match="is of another command"):
        ask(name="job", command=("true",))


@pytest.fixture
def known(data: Path) -> Run:
    """A run that was saved and ended at a signal."""
    options = RunOptions(every_us=60_000_000, restart=1)
    run = Run(
        name="job",
        command=("train",),
        directory="/",
        repository="/r",
        options=options,
        state=RunState.SAVED,
        boot_id=boot_id(),
    )
    run_folder("job").mkdir(parents=True)
    write_run(run_folder("job"), run)
    return run


@pytest.mark.parametrize(("command", "every_us"), [((), 60_000_000), (("train",), None)])
def test_options_that_are_given_again(
    known: Run, command: tuple[str, ...], every_us: int | None
) -> None:
    """With its command, the command line is all that counts."""
    request = Request(name="job", command=command, options={"restart": 7})
    opened = open_run(request, run_folder("job"))
    assert opened.run.options == RunOptions(every_us=every_us, restart=7)
    assert opened.beginning is Beginning.RETURN


def test_a_run_stays_where_its_snapshots_are(known: Run) -> None:
    with pytest.raises(UsageError, match="The snapshots of run job are in /r"):
        ask(name="job", repository=Path("/elsewhere"))


def test_a_job_of_this_boot_is_watched_as_a_run_of_another(known: Run) -> None:
    write_run(run_folder("job"), msgspec.structs.replace(known, boot_id="another", exit_code=1))
    with subprocess.Popen(["sleep", "60"]) as process:
        run = open_run(Request(name="job", pid=process.pid), run_folder("job")).run
        assert (run.root, run.boot_id) == (identity(process.pid), boot_id())
        assert run.command == (), "a crash must not start the old command"
        process.kill()


@pytest.mark.parametrize("wanted", [{"fresh": True}, {"pid": os.getppid()}])
def test_a_job_that_is_alive_is_not_replaced(known: Run, wanted: dict[str, object]) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        write_run(run_folder("job"), msgspec.structs.replace(known, root=identity(process.pid)))
        with pytest.raises(UsageError, match="The job of run job is alive"):
            ask(name="job", **wanted)
        process.kill()
