"""The real CRIU, and processes for it."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusnap.criu import (
    Criu,
    DumpRequest,
    RestoreRequest,
    Session,
    find_criu,
    install_private_criu,
    search_criu,
)
from tests.criu.counters import Counter

SECONDS = 1_000_000


@pytest.fixture(scope="session")
def criu() -> Criu:
    """The CRIU that gpusnap finds; the private copy is made where there is none."""
    if search_criu().criu is None:
        install_private_criu(print)
    return find_criu()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Counter]]:
    """Starts counters, each in a folder of its own, and ends what is left of them."""
    counters: list[Counter] = []

    def run(setup: str = "", **options: object) -> Counter:
        counters.append(Counter(tmp_path / f"counter-{len(counters)}", setup, **options))
        return counters[-1]

    yield run
    for counter in counters:
        counter.end()


@pytest.fixture
def counter(start: Callable[..., Counter]) -> Counter:
    """A process that counts."""
    return start()


def agree(_script: str, _pid: int | None) -> bool:
    """A client that lets CRIU go on at every stage."""
    return True


def dump_request(counter: Counter, **changes: object) -> DumpRequest:
    """A dump that leaves the counter running."""
    settings: dict[str, object] = {
        "pid": counter.pid,
        "images": counter.images,
        "work": counter.work,
        "leave_running": True,
        "timeout_us": 60 * SECONDS,
    }
    return DumpRequest(**settings | changes)  # type: ignore[arg-type]


def restore_request(counter: Counter, **changes: object) -> RestoreRequest:
    """The restore of what :func:`dump_request` saved."""
    settings: dict[str, object] = {
        "images": counter.images,
        "work": counter.work,
        "timeout_us": 60 * SECONDS,
    }
    return RestoreRequest(**settings | changes)  # type: ignore[arg-type]


class Clock:
    """The session's clock, which can jump far over every deadline."""

    def __init__(self) -> None:
        self._jumps = math.inf

    def jump(self, in_seconds: float) -> None:
        self._jumps = time.monotonic() + in_seconds

    def monotonic(self) -> float:
        now = time.monotonic()
        return now + (1000 if now >= self._jumps else 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """It alone lets a deadline pass: how fast CRIU gets on to a stage does not count."""
    clock = Clock()
    for module in ("session", "service"):
        monkeypatch.setattr(f"gpusnap.criu.{module}.time", clock)
    return clock


@pytest.fixture
def saved(criu: Criu, counter: Counter) -> Counter:
    """A counter that was dumped and is gone."""
    Session(criu).dump(dump_request(counter, leave_running=False), agree)
    assert counter.wait_gone()
    return counter
