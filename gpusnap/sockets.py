"""Folders of the sockets of a target, which may be gone by the time it is restored.

CRIU makes a socket's file anew, but not the folder that it is in. Python's multiprocessing has
such sockets in folders that each process removes as it ends, as the workers of a PyTorch
``DataLoader`` do when the training has crashed.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpusnap.criu import SocketFile, socket_files
from gpusnap.errors import GpusnapError

_MODE = 0o700


@contextlib.contextmanager
def socket_folders(images: Path) -> Iterator[None]:
    """Make the folders that are missing; they are taken away again if the restore fails.

    Args:
        images: The folder of CRIU's images.

    Raises:
        IntegrityError: The images are damaged.
        GpusnapError: A folder cannot be made.
    """
    made: list[Path] = []
    try:
        for each in socket_files(images):
            _make(Path(each.path).parent, each, made)
        yield
    except BaseException:
        _remove(made)
        raise


def _make(folder: Path, owned: SocketFile, made: list[Path]) -> None:
    missing = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    try:
        for each in reversed(missing):
            each.mkdir(_MODE)
            made.append(each)
            os.chown(each, owned.user, owned.group)
    except OSError as error:
        msg = f"The folder {folder} of a socket of the target cannot be made: {error.strerror}"
        raise GpusnapError(msg, cure="Make it as it was at the checkpoint") from error


def _remove(made: list[Path]) -> None:
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            folder.rmdir()
