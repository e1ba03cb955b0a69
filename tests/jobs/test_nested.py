"""A job that came back in a PID namespace of its own: it saves itself, and is told from copies."""

import sys
from pathlib import Path

import pytest

import gpusnap
from gpusnap.jobs.process import marked
from gpusnap.jobs.record import RunState
from gpusnap.repository import open_snapshot
from gpusnap.target import alive, identity
from tests.e2e.jobs import await_true
from tests.e2e.test_new_pids import end, set_variables
from tests.inprocess.programs import PRELUDE
from tests.jobs.running import Followed, Place
from tests.pids import Stranger

pytestmark = pytest.mark.usefixtures("real_criu")

PROGRAM = """
result = gpusnap.checkpoint_self()
say(result.outcome, result.snapshot)
if "copy" in result.overrides:
    attempt()
    say("copy")
    wait_for("never")
wait_for("go")
say("again", gpusnap.checkpoint_self().snapshot)
say("named", gpusnap.checkpoint_self("repository/named").snapshot)
wait_for("on")
gpusnap.checkpoint_self(kill=True)
"""


def nested(place: Place, name: str) -> Followed:
    """The program, saved once and brought back beside a stranger with its PID."""
    job = Followed(place, name)
    program = [sys.executable, place.site.folder / "program.py"]
    gpusnap_run = place.start("run", "--name", name, "--", *program)
    job.await_(lambda run: run.snapshots() == ["job-000001"], "it saves itself")
    root = job.run.root
    assert root is not None
    gpusnap_run.kill()
    gpusnap_run.wait()
    job.kill()
    await_true(lambda: identity(root.pid) is None, "its PID is free")
    with Stranger(root.pid):
        place.start("run", "--name", name)
        job.await_running(restarts=1)
    return job


def test_it_saves_itself_and_a_copy_is_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, log = place.site, place.site.folder / "log"
    set_variables(monkeypatch, site)
    monkeypatch.chdir(site.folder)
    (site.folder / "program.py").write_text(PRELUDE.format(log=str(log)) + PROGRAM)
    job = nested(place, "job")
    says(log, "restored job-000001")
    init = job.run.init
    assert init is not None
    assert alive(init)
    copy = gpusnap.restore_checkpoint("job-000001", new_pids=True, overrides={"copy": "1"})
    try:
        says(log, "copy")
        assert marked(job.folder) == (), "what is in a namespace is the job only by its name there"
        (refused,) = [line for line in log.read_text().splitlines() if "TargetError" in line]
        assert "is another copy than the job of the run job" in refused
    finally:
        end(copy)
    (site.folder / "go").touch()
    says(log, "again job-000002")
    says(log, "named named")
    assert open_snapshot(site.repository / "named").manifest.mailbox is not None
    (site.folder / "on").touch()
    supervisor = place.started[-1]
    _, err = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 75, err
    assert (job.run.state, job.run.init) == (RunState.SAVED, None)
    assert not alive(init)
    assert job.snapshots() == ["job-000001", "job-000002", "job-000003"]


def says(log: Path, line: str) -> None:
    await_true(lambda: line in log.read_text().splitlines(), f"it says {line!r}: {log.read_text()}")
