"""The toy accelerator: one device; programs and driver meet in the folder TOY_DIR names.

Each program has a folder there, named by its PID, with the state it is in (``state``), the
state the driver wants (``wanted``) and its device memory (``memory``).
"""

import os
from pathlib import Path

MEMORY = 1 << 20
"""Bytes of device memory, of the device and of each program that uses it."""


def root() -> Path | None:
    """The accelerator's folder; None where there is no accelerator."""
    folder = os.environ.get("TOY_DIR")
    return Path(folder) if folder and Path(folder).is_dir() else None


def read(path: Path) -> str | None:
    """A word from a file; None where there is no file."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def write(path: Path, word: str) -> None:
    """Write a word so that it is read as a whole."""
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(word)
    draft.replace(path)


def state(root: Path | None, pid: int) -> str | None:
    """State of a living program; None for every other process."""
    if root is None or not Path(f"/proc/{pid}").exists():
        return None
    return read(root / str(pid) / "state")
