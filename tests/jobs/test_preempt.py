"""A job whose devices an urgent command has for a while."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import gpusnap
from gpusnap.cli._main import run
from gpusnap.errors import BusyError, GpusnapError, NotFoundError, UsageError
from gpusnap.events import Event, Phase, PhaseFinished
from gpusnap.hookspecs import hookimpl
from gpusnap.jobs.preempt import find_command, preempt
from gpusnap.jobs.relay import Relay
from gpusnap.journal import entries
from gpusnap.plugins import Plugins
from gpusnap.recovery import recover
from gpusnap.suspension import SuspendOptions, lent
from gpusnap.testing import Machine, create_machine
from gpusnap.testing.backend import backend as simulated
from gpusnap.testing.program import reference_log
from tests.testing.running import Program, await_true, start_program

pytestmark = pytest.mark.usefixtures("root")

MEMORY = 8 << 20


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    machine = create_machine(folder / "machine", memory=MEMORY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUSNAP_SIM_DIR", str(machine.path))
        patch.setenv("GPUSNAP_STATE_DIR", str(folder / "state"))
        yield machine


@pytest.fixture
def plugins() -> Plugins:
    plugins = Plugins()
    plugins.register(simulated, "simulated", is_backend=True)
    return plugins


@pytest.fixture(scope="module")
def shared(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    program = start_program(machine, tmp_path_factory.mktemp("job") / "log")
    program.compute()
    yield program
    program.kill()


@pytest.fixture
def job(shared: Program) -> Iterator[Program]:
    """It computes before and after, and nothing is left to recover."""
    yield shared
    shared.compute()
    assert entries() == ()


def test_the_command_gets_the_whole_device(job: Program, plugins: Plugins, tmp_path: Path) -> None:
    log = tmp_path / "urgent"
    program = ["-m", "gpusnap.testing.program", str(log), "3", "--memory", str(MEMORY)]
    preempted = preempt(job.pid, [sys.executable, *program], plugins=plugins)
    assert preempted.exit_code == 0
    assert log.read_text() == reference_log(3, MEMORY)
    assert preempted.resumed.claimed == preempted.suspended.claimed == (job.pid,)


def test_the_job_stands_still_meanwhile(job: Program, plugins: Plugins, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    count = f"wc -l < {job.log} >> {seen}"
    gpusnap.preempt(job.pid, ["sh", "-c", f"{count}; sleep 0.5; {count}"], plugins=plugins)
    before, after = map(int, seen.read_text().split())
    assert after <= before + 1, "a step that had ended may still be written down"


@pytest.mark.parametrize(
    ("command", "code"), [("sh -c 'exit 7'", 7), ("sh -c 'kill -KILL $$'", 137)]
)
def test_exit_code(job: Program, plugins: Plugins, command: str, code: int) -> None:
    assert preempt(job.pid, command, plugins=plugins).exit_code == code


def test_a_command_that_cannot_be_started(job: Program, plugins: Plugins, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF and no more")
    program.chmod(0o700)
    with pytest.raises(GpusnapError, match="Exec format error") as raised:
        preempt(job.pid, str(program), plugins=plugins)
    assert raised.value.details == ("The job runs on",)


@pytest.mark.parametrize("command", ["", "  ", "sh -c 'open", ["", "a"], [], "a\0b"])
def test_no_command(command: str | list[str]) -> None:
    with pytest.raises(UsageError, match="is no command"):
        find_command(command)


class Listener:
    """Sends a signal at the end of a step, and notes the steps."""

    def __init__(self, number: int | None = None) -> None:
        self._number = number
        self.finished: list[Phase] = []

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        if isinstance(event, PhaseFinished):
            self.finished.append(event.phase)
            if self._number is not None and event.phase is Phase.CHECKPOINT:
                signal.raise_signal(self._number)


def test_json(job: Program, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["preempt", str(job.pid), "--for", "sh -c 'echo said; exit 3'", "--json"]) == 3
    out, err = capfd.readouterr()
    result = msgspec.json.decode(out.splitlines()[-1])["result"]
    assert (result["exit_code"], result["resumed"]["claimed"]) == (3, [job.pid])
    assert "said\n" in err


def test_an_unknown_command_leaves_the_job_alone(job: Program, plugins: Plugins) -> None:
    listener = Listener()
    plugins.register(listener, "listener")
    with pytest.raises(NotFoundError, match="There is no command 'no-such-command'"):
        preempt(job.pid, "no-such-command --fast", plugins=plugins)
    assert listener.finished == []


def test_a_signal_before_the_command(job: Program, plugins: Plugins, tmp_path: Path) -> None:
    listener = Listener(signal.SIGINT)
    plugins.register(listener, "listener")
    with pytest.raises(KeyboardInterrupt):
        preempt(job.pid, f"touch {tmp_path}/touched", plugins=plugins)
    assert not (tmp_path / "touched").exists()
    assert listener.finished[-1] is Phase.UNLOCK


def test_nobody_else_resumes_it_meanwhile(job: Program, plugins: Plugins) -> None:
    with (
        lent(job.pid, SuspendOptions(), plugins=plugins),
        pytest.raises(BusyError, match="runs a preempt of process"),
    ):
        gpusnap.resume(job.pid, plugins=plugins)


def start(job: Program, tmp_path: Path) -> tuple["subprocess.Popen[bytes]", int]:
    """Start ``gpusnap preempt`` with a long command, and wait until that runs."""
    command = f"sh -c 'echo $$ > {tmp_path}/guest; exec sleep 600'"
    arguments = [sys.executable, "-m", "gpusnap", "preempt", str(job.pid), "--for", command]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(arguments, stderr=said, start_new_session=True)
    guest = tmp_path / "guest"
    await_true(lambda: guest.exists() and guest.read_text() != "", "the command runs")
    return process, int(guest.read_text())


def test_the_command_gets_signals(job: Program, tmp_path: Path) -> None:
    process, _ = start(job, tmp_path)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert "The command ended with exit code 143" in (tmp_path / "said").read_text()


def test_a_killed_gpusnap_is_recovered_after_the_command(
    job: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process, guest = start(job, tmp_path)
    await_true(lambda: entries()[0][0].guest is not None, "the command is noted")
    process.kill()
    process.wait()
    (early,) = recover(job.pid)
    assert early.failed
    assert f"process {guest}, which it was suspended for, still runs" in early.outcome
    assert run(["ps"]) == 0
    assert f"A preempt of {job.pid} was interrupted" in capsys.readouterr().err
    os.kill(guest, signal.SIGKILL)
    await_true(lambda: not recover(job.pid)[0].failed, "it is recovered")


KILLS = "kill -KILL {pid}; until grep -q 'State:.*Z' /proc/{pid}/status; do sleep 0.01; done"
"""Ends once the process has: it may live a moment longer than the signal takes to arrive."""


def test_a_job_that_ends_meanwhile(machine: Machine, plugins: Plugins, tmp_path: Path) -> None:
    job = start_program(machine, tmp_path / "log")
    job.compute()
    try:
        with pytest.raises(GpusnapError) as raised:
            preempt(job.pid, ["sh", "-c", KILLS.format(pid=job.pid)], plugins=plugins)
        assert "The command had ended with exit code 0" in raised.value.details
    finally:
        job.kill()
    assert [each.outcome for each in recover()] == ["the target is gone"]


def test_the_relay_keeps_quiet_until_told() -> None:
    sent: list[int] = []
    with Relay() as relay:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        relay.hold()
        signal.raise_signal(signal.SIGTERM)
        relay.attach(sent.append)
        signal.raise_signal(signal.SIGINT)
        assert sent == relay.received == [signal.SIGTERM, signal.SIGINT]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
