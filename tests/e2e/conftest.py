"""Real processes, the real CRIU, a simulated accelerator."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.criu import search_criu
from tests.e2e.jobs import Job, Site


@pytest.fixture(scope="session", autouse=True)
def real_parts() -> None:
    if os.geteuid() != 0:
        pytest.skip("Needs root: processes are dumped and restored")
    if search_criu().criu is None:
        pytest.fail("No CRIU that works: run gpusnap setup-criu")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.make(tmp_path)


@pytest.fixture
def job(site: Site) -> Iterator[Job]:
    job = Job.start(site)
    yield job
    job.kill()
