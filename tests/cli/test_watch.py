"""How an operation's events reach people and machines."""

import io
import os
import pty
from collections.abc import Iterator

import click
import msgspec
import pytest
from rich.console import Console  # noqa: TID251 - what is shown is under test

from gpusnap.cli import _progress
from gpusnap.cli._interrupts import Interrupts
from gpusnap.cli._messages import PhaseLine
from gpusnap.cli._output import Output, ReaderGoneError, UnwritableError
from gpusnap.cli._progress import Display, on_terminal
from gpusnap.cli._watch import JsonLines, Watch, watched
from gpusnap.events import (
    CriuNotified,
    Event,
    Found,
    Frozen,
    Phase,
    PhaseFinished,
    PhaseProgress,
    PhaseStarted,
    Thawed,
)
from gpusnap.plugins import default_plugins
from gpusnap.types import Finding, Severity

WARNING = Finding(code="thin-ice", severity=Severity.WARNING, text="The ice is thin", cure="Skate")
NOTE = Finding(code="cold", severity=Severity.INFO, text="It is cold")
EVENTS: list[Event] = [
    PhaseStarted(phase=Phase.LOCK),
    Frozen(pids=(7, 8)),
    PhaseFinished(phase=Phase.LOCK, microseconds=15),
    PhaseStarted(phase=Phase.CHECKPOINT, total=100),
    *(PhaseProgress(phase=Phase.CHECKPOINT, done=done, total=100) for done in range(101)),
    PhaseFinished(phase=Phase.CHECKPOINT, microseconds=30),
    CriuNotified(script="post-dump"),
    Found(finding=WARNING),
    Found(finding=NOTE),
    Thawed(pids=(7, 8), microseconds=60),
]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    answer: int


@pytest.fixture
def context() -> Iterator[click.Context]:
    with click.Context(click.Command("any"), obj=Interrupts()) as context:
        yield context


def follow(output: Output, events: list[Event] = EVENTS) -> Watch:
    with watched(output) as watch:
        for event in events:
            watch.plugins.emit(event)
    return watch


def test_warnings_and_times_are_kept(
    context: click.Context, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = follow(Output(json=False))
    assert watch.exit_code == 3
    assert watch.record.frozen_us == 60
    assert [(each.phase, each.microseconds) for each in watch.record.phases] == [
        (Phase.LOCK, 15),
        (Phase.CHECKPOINT, 30),
    ]
    assert capsys.readouterr() == ("", "warning: The ice is thin [thin-ice]\n  cure: Skate\n")


def test_without_warnings_all_is_well(context: click.Context) -> None:
    assert follow(Output(json=False), [Found(finding=NOTE)]).exit_code == 0


def test_json_lines(context: click.Context, capsys: pytest.CaptureFixture[str]) -> None:
    follow(Output(json=True)).summary("checkpoint", Result(answer=42))
    captured = capsys.readouterr()
    lines = [msgspec.json.decode(line) for line in captured.out.splitlines()]
    assert captured.err == ""
    progress = [line for line in lines if line["message_type"] == "progress"]
    assert [line["bytes_done"] for line in progress] == [0, 100]
    kinds = [line["message_type"] for line in lines if line not in progress]
    assert kinds == [
        *("phase", "frozen", "phase", "phase", "phase", "finding", "finding", "thawed", "summary"),
    ]
    assert lines[-1]["result"] == {"answer": 42}
    assert lines[-1]["frozen_us"] == 60
    assert [each["code"] for each in lines[-1]["warnings"]] == ["thin-ice"]


@pytest.mark.parametrize("lost", [ReaderGoneError(), UnwritableError("The disk is full")])
def test_output_that_is_lost_ends_no_operation_and_is_told(
    monkeypatch: pytest.MonkeyPatch, lost: Exception
) -> None:
    tried = []

    def write(text: str) -> None:
        tried.append(text)
        raise lost

    monkeypatch.setattr("gpusnap.cli._output._write_out", write)
    output = Output(json=True)
    listener = JsonLines(output)
    for event in EVENTS:
        listener.gpusnap_event(event)
    with pytest.raises(type(lost)):
        output.line(PhaseLine(phase=Phase.DUMP, state="started"))
    assert len(tried) == 1


def test_listeners_leave_with_the_operation(context: click.Context) -> None:
    def listeners() -> list[str]:
        return [name for name, _ in default_plugins()._manager.list_name_plugin()]

    during: list[str] = []

    def fail() -> None:
        with watched(Output(json=True)):
            during.extend(listeners())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert {"cli-record", "cli-progress", "cli-interrupts"} <= set(during)
    assert not [name for name in listeners() if name.startswith("cli-")]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()

    def console(**_: object) -> Console:
        return Console(file=stream, force_terminal=True, width=120, color_system=None)

    monkeypatch.setattr(_progress, "Console", console)
    return stream


def test_the_display(screen: io.StringIO) -> None:
    with Display() as display:
        for event in EVENTS[:2]:
            display.gpusnap_event(event)
        display._progress.refresh()
        assert " frozen " in screen.getvalue()
        for event in EVENTS[2:]:
            display.gpusnap_event(event)
    # The last picture: rich draws all lines anew over the ones before.
    locked, moved = screen.getvalue().rpartition("lock devices")[2].splitlines()[:2]
    assert "frozen" not in locked + moved
    assert moved.lstrip().startswith("device to host memory")
    assert "100 B at " in moved
    assert "GB/s" in moved


def test_the_display_survives_a_step_that_fails(screen: io.StringIO) -> None:
    with Display() as display:
        display.gpusnap_event(PhaseStarted(phase=Phase.DUMP))
        display.gpusnap_event(PhaseStarted(phase=Phase.ROLLBACK))
        display.gpusnap_event(PhaseFinished(phase=Phase.ROLLBACK, microseconds=5))
        display.gpusnap_event(PhaseProgress(phase=Phase.VERIFY, done=1, total=2))
    assert "roll back" in screen.getvalue()


def test_every_phase_has_words() -> None:
    assert _progress._WORDS.keys() == set(Phase)


def test_a_file_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert not on_terminal()
    monkeypatch.setattr("sys.stderr", None)
    assert not on_terminal()


@pytest.mark.parametrize(("term", "shown"), [("xterm", True), ("dumb", False)])
def test_a_terminal_is_one(monkeypatch: pytest.MonkeyPatch, term: str, shown: bool) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as stream, os.fdopen(leader):
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr("sys.stderr", stream)
        assert on_terminal() is shown
