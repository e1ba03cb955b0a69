"""Events, and an environment in which nothing is switched on."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.criu import private_criu_directory
from gpusnap.events import (
    Event,
    OperationEnded,
    OperationFailed,
    OperationStarted,
    Phase,
    PhaseFinished,
    RunReported,
    SnapshotPublished,
    Thawed,
)
from gpusnap.metrics import outlet
from gpusnap.metrics.outlet import Batch, Ear
from gpusnap.types import Operation

START = OperationStarted(id="a1", operation=Operation.CHECKPOINT, pid=7)
END = OperationEnded(id="a1", operation=Operation.CHECKPOINT, microseconds=1_500_000)
FAILED = OperationFailed(
    id="a1",
    operation=Operation.CHECKPOINT,
    microseconds=5,
    pid=7,
    error="DeadlineError",
    code=17,
    text="CRIU took too long",
)
PUBLISHED = SnapshotPublished(
    path="/repo/one", id="s1", pids=(7,), read_bytes=1000, bytes=600, stored_bytes=400
)
CRASHED = RunReported(run="train", happening="crashed", text="It crashed", warning=True)
SAVED: tuple[Event, ...] = (
    START,
    PhaseFinished(phase=Phase.DUMP, microseconds=250_000),
    Thawed(pids=(7,), microseconds=300_000),
    PUBLISHED,
    END,
)


def batch_of(*events: Event) -> Batch:
    """What an ear makes of the events of one operation."""
    ear = Ear()
    *_, last = map(ear.hear, events)
    assert last is not None
    return last


@pytest.fixture(autouse=True)
def nothing_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = private_criu_directory()
    for name in [name for name in os.environ if name.startswith("GPUSNAP_")]:
        if name != "GPUSNAP_CRIU":
            monkeypatch.delenv(name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/criu").symlink_to(private)
    monkeypatch.setenv("GPUSNAP_DATA_DIR", str(tmp_path / "data"))
    # A busy machine may take longer than gpusnap waits
    monkeypatch.setattr(outlet, "_DEADLINE_S", 60.0)


@pytest.fixture
def port() -> Iterator[int]:
    """A free one, which nobody else is given: a server may have it beside who only holds it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])
