"""A job that runs already, watched; and one that meets trouble."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.jobs import start_detached
from tests.jobs.running import Followed, Place, is_result

pytestmark = pytest.mark.usefixtures("real_criu")


def test_a_job_that_runs_already(place: Place) -> None:
    """It writes into a file that is not only appended to, which has to be cut for a restore."""
    log, pid_file = place.site.folder / "log", place.site.folder / "pid"
    words = [str(word) for word in place.computing]
    script = f'exec "$@" > "{log}"'
    start_detached(["sh", "-c", script, "sh", *words], pid_file, place.environment)
    pid = int(pid_file.read_text())
    options = ("--name", "job", "--every", "300ms", "--restart", 3, "--restart-delay", "20ms")
    gpusnap = place.start("watch", pid, *options)
    job = Followed(place, "job")
    job.await_(lambda run: bool(run.snapshots()), "a snapshot")
    job.kill()
    job.await_running(restarts=1)
    assert job.pid == pid
    place.stop.touch()
    out, err = gpusnap.communicate(timeout=90)
    assert (gpusnap.returncode, out) == (0, ""), err
    assert is_result(log.read_text()), err
    assert job.run.command == ()


@pytest.fixture
def small_disk(place: Place) -> Iterator[Path]:
    """The repository, on a file system that is too small for a snapshot."""
    repository = place.site.repository
    repository.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", str(repository)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("No file system can be mounted here")
    yield repository
    subprocess.run(["umount", "--lazy", str(repository)], check=True)


def test_a_full_disk(place: Place, small_disk: Path) -> None:
    options = ("--every", "300ms")
    gpusnap = place.start("run", "--name", "job", *options, "--", *place.computing)
    job = Followed(place, "job")
    assert gpusnap.stderr is not None
    lines = iter(gpusnap.stderr.readline, "")
    assert "No snapshot could be made, and the job runs on" in "".join(
        next(line for line in lines if "snapshot" in line)
    )
    steps = job.steps
    job.await_(lambda run: run.steps > steps, "it computes")
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    job.await_(lambda run: bool(run.snapshots()), "a snapshot")
    place.stop.touch()
    out, err = gpusnap.communicate(timeout=90)
    assert (gpusnap.returncode, is_result(out)) == (0, True), err
