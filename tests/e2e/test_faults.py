"""Whoever is struck, wherever: the target computes on, and no half-restored process remains.

These are the points of the fault matrix at which a different path through gpusnap begins; all
points with all victims are what ``make faults`` strikes.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.jobs import Site
from tests.faults.commands import Commands
from tests.faults.scenes import SCENES, Scene, missed, opened

CHECKPOINT = [
    ("started:lock", "gpusnap"),
    ("finished:lock", "gpusnap"),
    ("started:checkpoint", "worker"),
    ("started:checkpoint", "journal"),
    ("started:checkpoint", "gpusnap:INT"),
    ("started:checkpoint+0.003", "gpusnap"),
    ("finished:checkpoint", "gpusnap"),
    ("criu:pre-dump", "gpusnap"),
    ("criu:pre-dump", "criu"),
    ("criu:pre-dump", "gpusnap:TERM"),
    ("criu:pre-dump+0.02", "gpusnap"),
    ("criu:post-dump", "gpusnap"),
    ("criu:post-dump", "criu"),
    ("criu:post-dump", "worker"),
    ("criu:post-dump", "target"),
    ("criu:post-dump", "journal"),
    ("criu:post-dump", "gpusnap:HUP"),
    ("started:copy", "gpusnap"),
    ("finished:copy", "criu"),
    ("started:restore", "gpusnap"),
    ("started:restore", "worker"),
    ("started:restore+0.003", "gpusnap"),
    ("started:unlock", "gpusnap"),
    ("started:unlock", "worker"),
    ("finished:unlock", "gpusnap"),
    ("started:digest", "gpusnap"),
    ("started:publish", "gpusnap"),
    ("finished:publish", "gpusnap"),
]

CHECKPOINT_KILL = [
    ("criu:post-dump", "gpusnap"),
    ("criu:post-dump", "criu"),
    ("criu:post-dump", "worker"),
    ("started:write", "gpusnap"),
    ("started:publish", "gpusnap"),
    ("started:publish", "criu"),
    ("finished:publish", "gpusnap"),
]

SUSPEND = [("finished:lock", "gpusnap"), ("finished:checkpoint", "gpusnap")]

RESUME = [
    ("started:restore", "gpusnap"),
    ("finished:restore", "gpusnap"),
    ("call:restore", "lost-answer"),
]

RESTORE = [
    ("finished:compare", "gpusnap"),
    ("criu:pre-restore", "gpusnap"),
    ("criu:post-restore", "gpusnap"),
    ("criu:post-restore", "criu"),
    ("finished:fill", "gpusnap"),
    ("finished:fill", "target"),
    ("criu:pre-resume", "criu"),
    ("criu:post-resume", "gpusnap"),
    ("started:restore", "gpusnap"),
    ("finished:restore", "gpusnap"),
    ("finished:restore", "worker"),
    ("finished:unlock", "gpusnap"),
]

CASES = {
    "checkpoint": CHECKPOINT,
    "checkpoint --kill": CHECKPOINT_KILL,
    "suspend": SUSPEND,
    "resume": RESUME,
    "restore": RESTORE,
}


@pytest.fixture(scope="module")
def scene_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Scene]]:
    """One target for all faults of a command: it has to survive every one of them."""
    current: dict[str, Scene] = {}
    with ExitStack() as stack:

        def finish() -> None:
            for scene in current.values():
                scene.end()
            current.clear()
            stack.close()

        def find(name: str) -> Scene:
            if name not in current:
                finish()
                folder = tmp_path_factory.mktemp("site")
                current[name] = stack.enter_context(opened(folder, name))
            return current[name]

        yield find
        finish()


@pytest.mark.parametrize(
    ("name", "point", "victim"),
    [(name, *case) for name, cases in CASES.items() for case in cases],
)
def test_struck(scene_of: Callable[[str], Scene], name: str, point: str, victim: str) -> None:
    scene = scene_of(name)
    struck = scene.strike(point, victim)
    if not point.startswith("call:"):
        assert struck.hit != "never" or missed(struck), f"not reached: {struck.errors}"
        assert struck.hit.isdigit() or "+" in point, "nobody was there"  # or no longer
    assert scene.outcome(struck)


def test_every_command_that_touches_a_target_is_struck() -> None:
    assert set(CASES) | {"checkpoint --incremental"} == set(SCENES)


def strike(site: Site, point: str, victim: str, *arguments: object) -> tuple[int, str, str]:
    """Run gpusnap with a fault; returns its exit code, its errors and who was hit."""
    struck = Commands(site).strike(point, victim, *arguments)
    return struck.code, struck.errors, struck.hit
