"""Whoever is killed, wherever: the target computes on, and no half-restored process remains."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.target import identity
from tests.e2e.jobs import Job, Site, await_true

CHECKPOINT_POINTS = (
    "started:preflight",
    "finished:preflight",
    "started:lock",
    "finished:lock",
    "started:checkpoint",
    "started:checkpoint+0.003",
    "finished:checkpoint",
    "started:dump",
    "criu:pre-dump",
    "criu:pre-dump+0.02",
    "criu:post-dump",
    "started:copy",
    "finished:copy",
    "started:restore",
    "started:restore+0.003",
    "finished:restore",
    "started:unlock",
    "finished:unlock",
    "started:write",
    "started:digest",
    "started:publish",
    "finished:publish",
)

KILL_POINTS = (
    "finished:checkpoint",
    "criu:pre-dump",
    "criu:post-dump",
    "started:copy",
    "started:write",
    "started:digest",
    "started:publish",
)
"""With --kill: all before the publication, after which the snapshot takes the target's place."""

RESTORE_POINTS = (
    "started:verify",
    "started:compare",
    "started:criu-restore",
    "criu:pre-restore",
    "criu:post-restore",
    "started:fill",
    "finished:fill",
    "criu:pre-resume",
    "criu:post-resume",
    "finished:criu-restore",
    "started:restore",
    "started:restore+0.003",
    "finished:restore",
    "started:unlock",
    "finished:unlock",
)

AFTER_WHICH_IT_IS_WHOLE = ("finished:restore", "started:unlock", "finished:unlock")


CRIU_HOLDS = ("criu:", "started:copy", "finished:copy", "started:fill", "finished:fill")
CRIU_LIVES = (*CRIU_HOLDS, "started:write", "started:digest", "started:publish")
WORKER_LIVES = (
    "finished:lock",
    "started:checkpoint",
    "finished:checkpoint",
    "started:dump",
    "criu:pre-dump",
    "criu:post-dump",
    "started:restore",
    "finished:restore",
    "started:unlock",
)


def faults(
    points: tuple[str, ...],
    criu: tuple[str, ...] = CRIU_HOLDS,
    worker: tuple[str, ...] = WORKER_LIVES,
) -> list[tuple[str, str]]:
    """Points and victims, where the victim lives: a fault that meets nobody shows nothing."""
    lives = {"gpusnap": ("",), "criu": criu, "worker": worker}
    return [
        (point, victim)
        for victim, where in lives.items()
        for point in points
        # A CRIU that is hit while it runs code inside the target takes the target with it;
        # tests/criu counts how often that happens.
        if point.startswith(where) and not (victim == "criu" and "+" in point)
    ]


def check_hit(point: str, hit: str, said: str) -> None:
    """Make sure that the fault happened; what strikes later may come too late."""
    assert hit != "never", f"the point was not reached: {said}"
    assert hit.isdigit() or "+" in point, f"nobody was there at {point}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """One target for all faults: it has to survive every one of them."""
    job = Job.start(Site.make(tmp_path_factory.mktemp("site")), steps=1_000_000)
    yield job
    job.kill()


def strike(site: Site, point: str, victim: str, *arguments: object) -> tuple[int, str, str]:
    """Run gpusnap with a fault; returns its exit code, its errors and who was hit."""
    report = site.folder / "report"
    report.unlink(missing_ok=True)
    ran = site.run("-m", "tests.e2e.faults", point, victim, report, *arguments)
    hit = report.read_text() if report.exists() else "never"
    assert "Traceback" not in ran.stderr
    return ran.returncode, ran.stderr, hit


@pytest.mark.parametrize(("point", "victim"), faults(CHECKPOINT_POINTS))
def test_checkpoint(running: Job, point: str, victim: str) -> None:
    site = running.site
    code, errors, hit = strike(site, point, victim, "checkpoint", running.pid, "one")
    check_hit(point, hit, errors)
    if victim == "gpusnap":
        assert code == -9
    elif code != 0:
        assert errors.startswith("gpusnap:"), errors
    check_survival(running)


@pytest.mark.parametrize(("point", "victim"), faults(KILL_POINTS, criu=CRIU_LIVES))
def test_checkpoint_that_ends_the_target(running: Job, point: str, victim: str) -> None:
    site = running.site
    code, errors, hit = strike(site, point, victim, "checkpoint", running.pid, "one", "--kill")
    check_hit(point, hit, errors)
    if running.alive:
        check_survival(running)
        return
    # Nobody essential was hit: the checkpoint ended as asked, and the snapshot has the target.
    assert code == 0, errors
    assert victim != "gpusnap"
    restored = site.gpusnap("restore", "one")
    assert restored.returncode == 0, restored.stderr
    running.adopt()
    check_survival(running)


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
@pytest.mark.parametrize(
    "point", ["finished:preflight", "started:checkpoint", "criu:pre-dump", "criu:post-dump"]
)
def test_checkpoint_that_is_asked_to_stop(running: Job, point: str, name: str) -> None:
    site = running.site
    code, errors, _ = strike(site, point, f"gpusnap:{name}", "checkpoint", running.pid, "one")
    assert code == 128 + signal.Signals[f"SIG{name}"]
    assert errors.startswith(f"gpusnap: Interrupted by SIG{name}"), errors
    assert not (site.repository / "one").exists()
    assert list((site.folder / "state").glob("*.json")) == [], "it cleans up by itself"
    check_survival(running)


@pytest.mark.parametrize("point", ["started:checkpoint", "started:dump", "criu:post-dump"])
def test_checkpoint_whose_journal_vanishes(running: Job, point: str) -> None:
    code, errors, _ = strike(running.site, point, "journal", "checkpoint", running.pid, "one")
    if code:
        assert errors.startswith("gpusnap: The journal"), errors
    assert running.computes(), "it is given back by gpusnap itself: nobody else could know of it"
    check_survival(running)


def check_survival(job: Job) -> None:
    site = job.site
    recovered = site.gpusnap("recover")
    assert recovered.returncode == 0, recovered.stderr + recovered.stdout
    assert job.alive
    assert job.computes(), recovered.stdout
    assert list((site.folder / "state").glob("*.json")) == []
    for left in site.repository.glob(".draft*"):
        assert not left.exists()
    snapshot = site.repository / "one"
    if snapshot.exists():
        assert site.gpusnap("verify", "one").returncode == 0
        assert site.gpusnap("rm", "one").returncode == 0


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A target that exists as a snapshot only."""
    job = Job.start(Site.make(tmp_path_factory.mktemp("site")), steps=2000)
    made = job.site.gpusnap("checkpoint", job.pid, "one", "--kill")
    assert made.returncode == 0, made.stderr
    yield job
    if identity(job.pid) is not None:
        job.adopt()
        job.kill()


@pytest.mark.parametrize(
    ("point", "victim"), faults(RESTORE_POINTS, worker=("finished:restore", "started:unlock"))
)
def test_restore(saved: Job, point: str, victim: str, tmp_path: Path) -> None:
    site = saved.site
    log = saved.log.read_text()
    code, errors, hit = strike(site, point, victim, "restore", "one")
    if victim == "gpusnap":
        assert code == -9
    recovered = site.gpusnap("recover")
    assert recovered.returncode == 0, recovered.stderr + recovered.stdout
    whole = "the target runs on" in recovered.stdout
    if code == 0 or whole:
        # Nobody essential was hit, or not before it was whole.
        assert code == 0 or point in AFTER_WHICH_IT_IS_WHOLE
        saved.adopt()
        assert saved.computes()
        saved.kill()
        saved.log.write_text(log)
    else:
        await_true(lambda: identity(saved.pid) is None, "no half-restored process remains")
    assert list((site.folder / "state").glob("*.json")) == []
    assert site.gpusnap("verify", "one").returncode == 0
    check_hit(point, hit, errors)


def test_the_snapshot_still_restores(saved: Job) -> None:
    restored = saved.site.gpusnap("restore", "one")
    assert restored.returncode == 0, restored.stderr
    saved.adopt()
    assert saved.finish() == saved.expected()
