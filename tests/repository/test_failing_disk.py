"""Whatever call a disk refuses: a sentence, nothing listed that is not whole, nothing held."""

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpusnap.datapath import Disk, Filler, Saver
from gpusnap.errors import GpusnapError
from gpusnap.repository import (
    Repository,
    RetentionPolicy,
    open_parent,
    verify,
    verify_files,
)
from tests.datapath.memory import Memory
from tests.descriptors import none_left_open
from tests.repository.samples import SAVING, hidden, manifest, silent, take, take_memory

CALLS = (
    "chmod",
    "close",
    "fchmod",
    "fstat",
    "fsync",
    "link",
    "listdir",
    "lstat",
    "mkdir",
    "open",
    "preadv",
    "pwritev",
    "rename",
    "rmdir",
    "scandir",
    "stat",
    "unlink",
)


class Failing:
    """A disk: counts the calls that are about files in a folder, and refuses one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = str(folder)
        self._lock = threading.Lock()
        self._left: int | None = None
        for name in CALLS:
            monkeypatch.setattr(os, name, self._failing(getattr(os, name), after=name == "close"))

    def _failing(self, call: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
        def made(*arguments: Any, **more: Any) -> Any:
            due = self._is_here(arguments[0], **more) and self._due()
            if after or not due:
                result = call(*arguments, **more)
            if due:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return result

        return made

    def _is_here(self, file: int | str | Path, dir_fd: int | None = None, **_more: Any) -> bool:
        if self._left is None:
            return False
        number = file if isinstance(file, int) else dir_fd
        where = str(file) if number is None else os.readlink(f"/proc/self/fd/{number}")
        return where.startswith(self._folder)

    def _due(self) -> bool:
        with self._lock:
            if self._left is not None:
                self._left -= 1
            return self._left == 0

    @contextmanager
    def refusing(self, step: int) -> Iterator[Callable[[], bool]]:
        """Refuse that call of those inside the block; tells whether there were so many."""
        self._left = step
        try:
            yield lambda: self._left is not None and self._left <= 0
        finally:
            left, self._left = self._left, None
            assert left is not None


@pytest.fixture
def memory() -> Memory:
    return Memory(os.urandom(1 << 16))


def checkpoint(repository: Repository, memory: Memory) -> None:
    parent = repository.find("p")
    with repository.prepare("c") as draft:
        (draft.images / "core-7.img").write_bytes(b"registers")
        saver = Saver(draft.regions, SAVING, open_parent(parent, draft), disk=Disk())
        saver.copy((memory.span,), silent)
        saved = saver.finish(silent)
        files = draft.digest(silent, saver.packs)
        draft.publish(msgspec.structs.replace(manifest("c", files), memory=saved))


def restore(repository: Repository, memory: Memory) -> None:
    snapshot, before = repository.find("p"), memory.content
    with snapshot.hold():
        verify_files(snapshot, silent)
        memory.lose()
        try:
            Filler(snapshot.regions, workers=1).fill(silent)
            assert memory.content == before
        finally:
            memory.content = before


def prune(repository: Repository, _memory: Memory) -> None:
    for refused in repository.prune(RetentionPolicy(keep_last=1)).refused:
        raise refused.error


@pytest.mark.parametrize(
    ("action", "most", "stride"),
    [(checkpoint, "cpq", 3), (restore, "pq", 1), (prune, "pq", 2)],  # every one would take long
)
def test_refused_calls(
    action: Callable[[Repository, Memory], None],
    most: str,
    stride: int,
    tmp_path: Path,
    memory: Memory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = Repository.create(tmp_path / "base")
    take_memory(base, "p", memory)
    take(base, "q")
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    disk, refusals = Failing(tmp_path / "repo", monkeypatch), 0
    for step in itertools.count(1, stride):
        path = shutil.copytree(base.path, tmp_path / "repo", copy_function=os.link)
        (path / ".draft-old").mkdir()
        repository = Repository.open(path)
        with none_left_open(), disk.refusing(step) as refused:
            try:
                action(repository, memory)
            except GpusnapError:
                refusals += 1
            enough = not refused()
        repository.clean()
        assert hidden(path) == []
        assert repository.damaged() == ()
        found = repository.snapshots()
        assert {each.name for each in found} <= set(most)
        assert all(verify(each, silent).intact for each in found)
        shutil.rmtree(path)
        if enough:
            break
    assert refusals > 20
