"""Whose snapshot it is: restoring one runs what it says, with gpusnap's rights."""

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from gpusnap.repository.storage import storage
from gpusnap.types import Finding, Severity

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def check_owner(snapshot: Path) -> Iterator[Finding]:
    """Refuse a snapshot that others than root and the caller could have written.

    Looked at are the folder it lies in, where a sticky bit is enough, and all inside.

    Args:
        snapshot: Its folder.

    Raises:
        PrivilegeError: It may not be looked at.
    """
    with storage("read", snapshot):
        words = _parent_fault(snapshot.parent) or _fault_below(snapshot)
    if words is not None:
        yield Finding(
            code="snapshot-owner",
            severity=Severity.ERROR,
            text=f"{words}, and restoring a snapshot runs what it holds",
            cure="Have its owner restore it; or, if you trust all who could have written it, "
            "take it over: chown -R, chmod -R go-w",
        )


def _parent_fault(folder: Path) -> str | None:
    status = folder.stat()
    return _fault(folder, status, shared=bool(status.st_mode & stat.S_ISVTX))


def _fault_below(root: Path) -> str | None:
    """The first fault of a folder and all in it; no link is followed."""
    folders = [root]
    while folders:
        folder = folders.pop()
        if fault := _fault(folder, folder.lstat()):
            return fault
        with os.scandir(folder) as entries:
            for entry in entries:
                if fault := _fault(Path(entry.path), entry.stat(follow_symlinks=False)):
                    return fault
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
    return None


def _fault(path: Path, status: os.stat_result, *, shared: bool = False) -> str | None:
    if status.st_uid not in {0, os.geteuid()}:
        return f"{path} belongs to {_name(status.st_uid)}"
    if status.st_mode & _OTHERS and not shared:
        return f"{path} may be written by others"
    return None


def _name(user: int) -> str:
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"
