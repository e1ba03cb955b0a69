"""Programs that ask for their own checkpoint, on a simulated machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.inprocess import callbacks
from tests.e2e.jobs import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.make(tmp_path, devices=2)


@pytest.fixture(autouse=True)
def no_callbacks() -> Iterator[None]:
    """What one test registers is not called in another."""
    yield
    for registered in callbacks._registered.values():
        registered.clear()
