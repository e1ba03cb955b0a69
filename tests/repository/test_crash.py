"""A process killed before any of its calls to the file system leaves all or nothing.

The interpreter announces each such call to an audit hook; a forked child kills itself at the
N-th, for every N until it gets to its end.
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gpusnap.errors import NotFoundError
from gpusnap.repository import Repository, verify
from tests.repository.samples import fill, hidden, manifest, silent, take

SMALL = {"criu/core-7.img": b"registers", "logs/dump.log": b""}


def killed_at(step: int, action: Callable[[], object]) -> bool:
    """Run something in a child that dies at its N-th step; False if it has fewer."""
    child = os.fork()
    if child == 0:
        steps = itertools.count(1)

        def die(event: str, _arguments: object) -> None:
            if event.startswith(("os.", "open", "fcntl.")) and next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(die)
        try:
            action()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def checkpoint(path: Path) -> None:
    with Repository.create(path).prepare("a") as draft:
        fill(draft, SMALL)
        (draft.work / "dump.log").write_text("log")
        draft.publish(manifest("a", draft.digest(silent)))


def listed(path: Path) -> int:
    """How many snapshots there are, none of which is damaged."""
    try:
        repository = Repository.open(path)
    except NotFoundError:
        return 0
    assert repository.damaged() == ()
    assert all(verify(snapshot, silent).intact for snapshot in repository.snapshots())
    return len(repository.snapshots())


def test_checkpoint(tmp_path: Path) -> None:
    counts = []
    for step in itertools.count(1):
        path = tmp_path / str(step)
        if not killed_at(step, partial(checkpoint, path)):
            break
        counts.append(listed(path))
        repository = Repository.create(path)
        if not counts[-1]:
            take(repository, "a", SMALL)
        repository.clean()
        assert listed(path) == 1
        assert sorted(os.listdir(path)) == ["a", "gpusnap.json"]
    assert counts == sorted(counts), "once it is listed it stays"
    assert set(counts) == {0, 1}
    assert len(counts) > 40, "the hook sees the calls"


def test_remove(tmp_path: Path) -> None:
    counts = []
    for step in itertools.count(1):
        repository = Repository.create(tmp_path / str(step))
        snapshot = take(repository, "a", SMALL)
        if not killed_at(step, partial(repository.remove, snapshot)):
            break
        counts.append(listed(repository.path))
        repository.clean()
        assert hidden(repository.path) == []
        assert listed(repository.path) == counts[-1]
    assert counts == sorted(counts, reverse=True), "once it is gone it is gone"
    assert set(counts) == {0, 1}


@pytest.mark.parametrize("writers", [5])
def test_race_for_one_name(repository: Repository, writers: int) -> None:
    start, go = os.pipe()
    children = []
    for _ in range(writers):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(start, 1)
            try:
                take(repository, "a", SMALL)
            except BaseException:  # noqa: BLE001  whatever it is, this child did not win
                os._exit(1)
            os._exit(0)
        children.append(child)
    os.close(start)
    os.close(go)
    wins = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children]
    assert sum(wins) == 1
    assert listed(repository.path) == 1
    assert hidden(repository.path) == []
