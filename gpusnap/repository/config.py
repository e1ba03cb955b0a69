"""The file that makes a folder a repository."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from gpusnap.errors import GpusnapError, NotFoundError, UsageError
from gpusnap.repository.layout import CONFIG, FORMAT_VERSION
from gpusnap.repository.locks import waiting_lock
from gpusnap.repository.manifest import decode_versioned, new_id
from gpusnap.repository.storage import (
    FOLDER_MODE,
    printable,
    read_part,
    storage,
    sync_folder,
    write_durably,
)

_LIMIT = 1 << 16


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of a whole repository.

    Attributes:
        format_version: Version of the layout.
        id: Tells this repository from every other.
    """

    format_version: Annotated[int, Meta(ge=1)] = FORMAT_VERSION
    id: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


def _absent(path: Path) -> GpusnapError:
    name = printable(path)
    try:
        # Asked once: another process may be making it right now.
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return NotFoundError(
            f"There is no repository {name}",
            cure="gpusnap checkpoint makes it with the first snapshot",
        )
    if stat.S_ISDIR(mode):
        return NotFoundError(f"{name} is no gpusnap repository", cure="Name the right folder")
    return UsageError(f"{name} is a file, not a repository", cure="Name a folder")


def read_config(path: Path) -> Config:
    """Read the configuration of a repository.

    Raises:
        NotFoundError: There is no repository.
        UsageError: It is a file.
        IntegrityError: The configuration is damaged.
        IncompatibleError: A newer gpusnap wrote it.
        PrivilegeError: It may not be read.
    """
    file = path / CONFIG
    with storage("read", file):
        try:
            data = read_part(file, _LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            raise _absent(path) from None
    return decode_versioned(data, Config, file, FORMAT_VERSION)


def _write(descriptor: int, new: Path, file: Path) -> None:
    with os.fdopen(descriptor, "wb", closefd=False) as opened:
        opened.truncate(0)
        write_durably(opened, msgspec.json.encode(Config(id=new_id())) + b"\n")
    new.rename(file)
    sync_folder(file.parent)


@contextmanager
def _in_place_for_files(path: Path) -> Iterator[None]:
    """Explain what the likes of ``/proc`` answer to whoever makes a file or folder there."""
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(
            f"Cannot make repository {printable(path)}: no files can be made there",
            cure="Name a folder on a disk",
        ) from error


def make_config(path: Path) -> Config:
    """Read the configuration of a repository, which is made unless it is there.

    A folder that exists keeps its permissions and whatever else is in it.

    Raises:
        UsageError: The path is a file, or leads through one.
        GpusnapError: It cannot be made; and all that :func:`read_config` raises.
    """
    with suppress(NotFoundError):
        return read_config(path)
    file, new = path / CONFIG, path / f".{CONFIG}.new"
    with storage("make repository", path), _in_place_for_files(path):
        path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        # Of two that make it at once, the second finds it made when the lock is its own.
        with waiting_lock(new) as descriptor:
            if not file.exists():
                _write(descriptor, new, file)
            new.unlink(missing_ok=True)
        sync_folder(path.parent)
    return read_config(path)
