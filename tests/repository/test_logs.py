import os
import tempfile
from pathlib import Path

import pytest

from gpusnap.errors import CriuError
from gpusnap.repository import Repository
from gpusnap.repository.logs import keep_failure_log, restore_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def fail(repository: Path, error: BaseException, log: str = "restore.log") -> Path:
    """Have a restore write a log and fail; returns where its folder was."""
    folders = []

    def restore() -> None:
        with restore_folder(repository, "a") as work:
            folders.append(work)
            (work / log).write_text("no")
            raise error

    with pytest.raises(type(error)):
        restore()
    return folders[0]


def test_a_restore_that_goes_well_leaves_nothing(repository: Repository) -> None:
    with restore_folder(repository.path, "a") as work:
        assert work.stat().st_mode & 0o777 == 0o700
        (work / "restore.log").write_text("yes")
    assert not work.exists()
    assert not (repository.path / "logs").exists()


@pytest.mark.parametrize("error", [CriuError("CRIU failed"), KeyboardInterrupt()])
def test_the_log_of_a_failure_is_kept(repository: Repository, error: BaseException) -> None:
    work = fail(repository.path, error)
    kept = repository.path / "logs/a-restore.log"
    assert kept.read_text() == "no"
    assert not work.exists()
    if isinstance(error, CriuError):
        assert error.details == (f"CRIU's log: {kept}",)


def test_a_snapshot_without_a_repository_keeps_it_aside(tmp_path: Path) -> None:
    error = CriuError("CRIU failed")
    work = fail(tmp_path, error)
    assert list(tmp_path.iterdir()) == []
    assert error.details == (f"CRIU's log: {work}/restore.log",)
    assert (work / "restore.log").read_text() == "no"


def test_a_failure_without_a_log(repository: Repository) -> None:
    error = CriuError("CRIU failed")
    assert not fail(repository.path, error, log="other").exists()
    assert error.details == ()


def test_the_log_written_last_is_named(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "z.log").write_text("first")
    (tmp_path / "a.log").write_text("second")
    os.utime(tmp_path / "z.log", (1, 1))
    assert keep_failure_log(repository.path, "s", tmp_path) == repository.path / "logs/s-a.log"
    assert (repository.path / "logs/s-z.log").read_text() == "first"
