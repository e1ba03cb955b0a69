"""Repositories to test with."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusnap.repository import Repository


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Emptied at once: many tests have large files, and the folder may be in memory (tmpfs)."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "repo")


@pytest.fixture
def mounted(tmp_path: Path, root: None) -> Iterator[Callable[[str], Path]]:
    """Mount small file systems with given options, each in place of the one before."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def unmount() -> None:
        subprocess.run(["umount", str(folder)], check=False, stderr=subprocess.DEVNULL)

    def mount(options: str) -> Path:
        unmount()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("This machine does not let root mount a file system")
        return folder

    yield mount
    unmount()
