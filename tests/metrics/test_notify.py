import json
import time
from pathlib import Path

import pytest

from gpusnap.errors import GpusnapError, UsageError
from gpusnap.events import RunReported
from gpusnap.metrics import notify as notify_module
from gpusnap.metrics.notify import Notify
from tests.metrics.conftest import CRASHED, FAILED, PUBLISHED, SAVED, START

VARIABLE = "GPUSNAP_NOTIFY"


def tell(notify: Notify, *events: object) -> None:
    for event in events:
        notify.gpusnap_event(event=event)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than gpusnap waits."""
    monkeypatch.setattr(notify_module, "_PATIENCE_S", 60.0)


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the command was given."""
    path = tmp_path / "letters of 2"
    monkeypatch.setenv(
        VARIABLE, f"sh -c 'cat >> \"{path}\"; echo said; echo ${VARIABLE} >> {path.parent}/again'"
    )
    return path


def test_a_snapshot_and_a_failure_are_told(letters: Path) -> None:
    notify = Notify()
    tell(notify, *SAVED)
    tell(notify, START, FAILED)
    one, two = map(json.loads, letters.read_text().splitlines())
    assert (one["type"], one["path"]) == ("SnapshotPublished", PUBLISHED.path)
    assert (two["type"], two["code"]) == ("OperationFailed", 17)


def test_a_crash_is_told_and_a_start_is_not(letters: Path) -> None:
    notify = Notify()
    tell(notify, RunReported(run="train", happening="started", text="x"))
    assert not letters.exists()
    tell(notify, CRASHED)
    assert json.loads(letters.read_text())["run"] == "train"


def test_a_command_does_not_call_itself(letters: Path) -> None:
    tell(Notify(), *SAVED)
    assert (letters.parent / "again").read_text() == "\n"


def test_nothing_is_run_for_an_operation_without_a_snapshot(letters: Path) -> None:
    tell(Notify(), START, SAVED[-1])
    assert not letters.exists()


@pytest.mark.parametrize(
    ("command", "error", "why"),
    [
        ("/nowhere/tell", GpusnapError, "does not exist"),
        ("/dev/null", GpusnapError, "cannot be run"),
        ("false", GpusnapError, "ended with exit code 1"),
        ("sh -c 'unclosed", UsageError, "No closing quotation"),
        ("   ", UsageError, "holds no command"),
    ],
)
def test_a_broken_command(
    monkeypatch: pytest.MonkeyPatch, command: str, error: type[GpusnapError], why: str
) -> None:
    monkeypatch.setenv(VARIABLE, command)
    with pytest.raises(error, match=why):
        tell(Notify(), *SAVED)


def test_a_command_that_hangs_is_not_waited_for_and_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify_module, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(notify_module, "_DEADLINE_S", 0.2)
    monkeypatch.setenv(VARIABLE, "sleep 600")
    notify = Notify()
    with monkeypatch.context() as patch:
        patch.setattr(notify, "_check", lambda: None)  # it may end before this one gets on
        tell(notify, *SAVED)
    (running,) = notify._running
    assert running.wait(60) == 124
    with pytest.raises(GpusnapError, match="did not end within"):
        tell(notify, START, SAVED[-1])  # told with whatever comes next
    assert notify._running == []


def test_a_command_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "true")
    tell(Notify(), *SAVED)


def test_a_late_success_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify_module, "_PATIENCE_S", 0.0)
    monkeypatch.setenv(VARIABLE, "sleep 0.1")
    notify = Notify()
    tell(notify, *SAVED)
    while notify._running:
        tell(notify, START, SAVED[-1])
        time.sleep(0.01)
