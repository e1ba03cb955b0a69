"""Real processes, the real CRIU, a simulated accelerator with two devices."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.criu import search_criu
from tests.jobs.running import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place.make(tmp_path / "place", devices=2)
    yield place
    place.end()


@pytest.fixture
def real_criu() -> None:
    if os.geteuid() != 0:
        pytest.skip("Needs root: processes are dumped and restored")
    if search_criu().criu is None:
        pytest.fail("No CRIU that works: run gpusnap setup-criu")


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """The command line run in this process must not leave its handlers to the next test."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
