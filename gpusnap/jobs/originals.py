"""Files that every run begins with: put back as they were before the first one."""

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from gpusnap.criu import open_files
from gpusnap.errors import GpusnapError, UsageError
from gpusnap.repository import Snapshot

_OF_THE_KERNEL = ("/dev/", "/proc/", "/sys/")


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a snapshot has open for writing.

    Attributes:
        size: Its length then, in bytes; None where it is only appended to, so that it may grow.
        end: The end of what the job wrote last, in bytes; 0 where it wrote nothing.
    """

    path: Path
    size: int | None
    end: int

    @property
    def length(self) -> int | None:
        """How long it was as far as is known, in bytes."""
        return self.end or None if self.size is None else self.size


def written_files(snapshot: Snapshot) -> dict[Path, Written]:
    """The ordinary files that a snapshot has open for writing and that are still there.

    Raises:
        IntegrityError: The snapshot's list of files is damaged.
    """
    found: dict[Path, Written] = {}
    for file in open_files(snapshot.images):
        path = Path(file.path)
        if not (file.written and _is_ordinary(path)):
            continue
        before = found.get(path)
        size = file.size if before is None or before.size is None else before.size
        end = max(file.position, before.end if before else 0)
        found[path] = Written(path=path, size=size, end=end)
    return found


def _is_ordinary(path: Path) -> bool:
    """A file under the very name that the kernel would tell: a snapshot may be made up."""
    if str(path).startswith(_OF_THE_KERNEL) or os.path.realpath(path) != str(path):
        return False
    return path.is_file()


def check_outputs(paths: Iterable[str | Path]) -> tuple[Path, ...]:
    """Absolute paths of files, without links, which need not exist.

    Raises:
        UsageError: Something else than a file has such a name, or none could have it.
    """
    return tuple(map(_check_output, paths))


def _check_output(path: str | Path) -> Path:
    try:
        found = Path(os.path.realpath(path))
        if not found.exists() or found.is_file():
            return found
    except ValueError:  # a path that no file can have
        pass
    raise UsageError(f"{str(path)!r} is no file")


class _Original(NamedTuple):
    """A file that was there: its copy, owner and rights."""

    copy: Path
    status: os.stat_result


class Originals:
    """Copies of files, or the knowledge that there was none.

    Args:
        files: Paths, each with the length to which a longer file is cut, None for none: what a
            job wrote after it was saved must not be there when it is restored.

    Raises:
        GpusnapError: A file cannot be copied.
    """

    def __init__(self, files: Mapping[Path, int | None]) -> None:
        self._stack = contextlib.ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gpusnap-")))
        self._originals: dict[Path, _Original | None] = {}
        try:
            for number, (path, size) in enumerate(files.items()):
                with _named(path):
                    self._originals[path] = _save(path, folder / str(number), size)
        except BaseException:
            self._stack.close()
            raise

    def put_back(self) -> None:
        """Make every file what it was.

        Raises:
            GpusnapError: A file cannot be written.
        """
        for path, original in self._originals.items():
            with _named(path):
                if original is None:
                    path.unlink(missing_ok=True)
                else:
                    _write(path, original)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Forget the copies; the files stay as they are."""
        self._stack.close()


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"{path} cannot be put back before each run: {error.strerror}"
        raise GpusnapError(msg, cure="See to its rights, and to the space in TMPDIR") from None


def _save(path: Path, copy: Path, size: int | None) -> _Original | None:
    try:
        status = path.stat()
        shutil.copyfile(path, copy)
    except FileNotFoundError:
        return None
    if size is not None and size < status.st_size:
        os.truncate(copy, size)
    return _Original(copy, status)


def _write(path: Path, original: _Original) -> None:
    """Write into the same file, which others may have open; never to where a link leads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file, original.copy.open("rb") as copy:
        shutil.copyfileobj(copy, file)
        os.fchown(file.fileno(), original.status.st_uid, original.status.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(original.status.st_mode))


def digest_of(path: Path) -> str | None:
    """SHA-256 of a file in hexadecimal; None where there is none.

    Raises:
        GpusnapError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GpusnapError(f"The output {path} cannot be read: {error.strerror}") from None
