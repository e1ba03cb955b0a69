"""Images in which a vendor's plugin put device memory: they go into packs as memory does."""

import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpusnap.datapath import ImageFile
from gpusnap.errors import PluginError
from gpusnap.plugins import Backend
from gpusnap.repository.storage import storage
from gpusnap.room import room
from gpusnap.types import BulkImage, Finding, Severity

_REPORT = "Report it to the backend's authors; --no-regions leaves all images as they are"


def find_bulk_images(backend: Backend | None, images: Path) -> tuple[ImageFile, ...]:
    """What of a complete dump is to be packed.

    Args:
        backend: Who knows, if anybody does.
        images: The folder of the dump.

    Raises:
        PluginError: The backend tells of files that are not there, or are not so long.
    """
    if backend is None:
        return ()
    return tuple(_checked(backend, images, each) for each in backend.bulk_images(str(images)))


def _checked(backend: Backend, images: Path, image: BulkImage) -> ImageFile:
    path = images / image.name
    length = _length(path) if Path(image.name).name == image.name else None
    if length != sum(image.parts) or any(part < 0 for part in image.parts):
        found = "is no file of the dump" if length is None else f"has {length} bytes"
        text = (
            f"Backend {backend.name} answered bulk_images with {sum(image.parts)} bytes of "
            f"{image.name!r}, which {found}"
        )
        raise PluginError(text, cure=_REPORT)
    return ImageFile(path=path, parts=image.parts)


def _length(path: Path) -> int | None:
    """Bytes of a regular file, which is no link; None of anything else."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def remove(files: Sequence[ImageFile]) -> None:
    """Delete files that are in packs now.

    Raises:
        GpusnapError: The disk refused.
    """
    for file in files:
        with storage("remove", file.path):
            file.path.unlink()


def check_room(needed: int) -> Iterator[Finding]:
    """Refuse to unpack what does not fit into the folder for temporary files.

    Args:
        needed: Bytes of the images that a restore needs to be unpacked.
    """
    folder = Path(tempfile.gettempdir())
    free = room(folder)
    if needed > free:
        yield Finding(
            code="restore-space",
            severity=Severity.ERROR,
            text=f"The restore needs {needed} bytes for images with device memory; {folder} has "
            f"room for {free} bytes",
            cure="Free disk or memory there, or name another folder in the variable TMPDIR",
        )
