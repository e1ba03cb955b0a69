"""Saved memory to test with."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """A thread whose work was called off ends soon, though not before the error is told."""
    yield
    left = [thread for thread in threading.enumerate() if thread.name.startswith("gpusnap-data")]
    for thread in left:
        thread.join(60)
    assert not any(thread.is_alive() for thread in left)


@pytest.fixture
def mounted(tmp_path: Path, root: None) -> Iterator[Callable[[int], Path]]:
    """Mount file systems of so many KiB, each in place of the one before."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def unmount() -> None:
        subprocess.run(["umount", str(folder)], check=False, stderr=subprocess.DEVNULL)

    def mount(size: int) -> Path:
        unmount()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("This machine does not let root mount a file system")
        return folder

    yield mount
    unmount()
