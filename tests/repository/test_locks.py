import errno
import fcntl
import os
from pathlib import Path

import pytest

from gpusnap.errors import GpusnapError
from gpusnap.repository import locks
from gpusnap.repository.locks import hold_folder, reading_lock, removing_lock
from tests.descriptors import none_left_open


def test_held_once(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    first = hold_folder(folder, "lock")
    with pytest.raises(BlockingIOError):
        hold_folder(folder, "lock")
    os.close(first)
    os.close(hold_folder(folder, "lock"))


def test_locks_are_not_handed_to_programs_that_are_started(tmp_path: Path) -> None:
    descriptor = hold_folder(tmp_path, "lock")
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


@pytest.mark.timeout(60)
def test_reading_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with reading_lock(tmp_path / "pipe"):
        pass


def test_what_was_removed_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flock = tmp_path / "a", fcntl.flock
    path.touch()

    def flock_late(descriptor: int, operation: int) -> None:
        path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with none_left_open(), pytest.raises(FileNotFoundError), reading_lock(path):
        pass


def failing(*_arguments: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_disk_that_fails_leaves_nothing_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(locks, "_same_file", failing)
        with pytest.raises(OSError, match="Input/output error"):
            hold_folder(tmp_path / "a", "lock")
    os.close(hold_folder(tmp_path / "a", "lock"))


def test_what_the_disk_says_at_the_end_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    close = os.close

    def close_badly(descriptor: int) -> None:
        close(descriptor)
        failing()

    with monkeypatch.context() as patch:
        for hold in (reading_lock, removing_lock):
            with hold(tmp_path / "a"):
                patch.setattr(os, "close", close_badly)
            patch.undo()
    with removing_lock(tmp_path / "a"):
        pass


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["file", "link to nothing", "link to a folder"])
def test_what_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "a"
    if kind == "file":
        folder.touch()
    else:
        folder.symlink_to(tmp_path / "b")
    if kind == "link to a folder":
        (tmp_path / "b").mkdir()
    with pytest.raises(GpusnapError, match="a is not a folder"):
        hold_folder(folder, "lock")


@pytest.mark.parametrize("moment", ["open", "flock"])
def test_a_folder_that_is_moved_away_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whoever held it may give it up between any two steps: what is held must be what is there."""
    folder, away = tmp_path / "a", tmp_path / "away"
    open_file, flock = os.open, fcntl.flock

    def move() -> None:
        if not away.exists():
            folder.rename(away)

    def open_late(path: Path, flags: int, mode: int) -> int:
        if moment == "open":
            move()
        return open_file(path, flags, mode)

    def flock_late(descriptor: int, operation: int) -> None:
        if moment == "flock":
            move()
        flock(descriptor, operation)

    monkeypatch.setattr(os, "open", open_late)
    monkeypatch.setattr(fcntl, "flock", flock_late)
    descriptor = hold_folder(folder, "lock")
    assert away.is_dir()
    assert os.path.samestat(os.fstat(descriptor), (folder / "lock").stat())
    os.close(descriptor)
