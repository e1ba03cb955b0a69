"""Logs of operations that failed, kept in the repository."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from gpusnap.errors import GpusnapError
from gpusnap.repository.layout import CONFIG, LOGS
from gpusnap.repository.storage import FILE_MODE, make_folder, storage


def keep_failure_log(repository: Path, name: str, work: Path) -> Path | None:
    """Move ``work/PHASE.log`` to ``logs/NAME-PHASE.log`` of the repository.

    Whatever goes wrong here must not hide the failure that the logs are of: a log that cannot
    be moved stays where it is.

    Returns:
        Where the log written last is now; None if there is no log.
    """
    kept = None
    for log in sorted(work.glob("*.log"), key=lambda log: log.stat().st_mtime_ns):
        kept = log
        with suppress(OSError):
            # A snapshot may have been copied out of its repository.
            (repository / CONFIG).lstat()
            make_folder(repository / LOGS)
            log.chmod(FILE_MODE)
            # Within a file system this is a rename, which works on a full disk too.
            kept = Path(shutil.move(log, repository / LOGS / f"{name}-{log.name}"))
    return kept


@contextmanager
def restore_folder(repository: Path, name: str) -> Iterator[Path]:
    """A private folder for CRIU's logs of a restore; a snapshot itself never changes.

    If the block raises, the logs are kept as :func:`keep_failure_log` does, and the details of
    a GpusnapError say where.
    """
    with storage("make a folder in", Path(gettempdir())):
        work = Path(mkdtemp(prefix="gpusnap-restore-"))
    try:
        yield work
    except BaseException as error:
        kept = give_up_folder(repository, name, work)
        if kept is not None and isinstance(error, GpusnapError):
            error.details += (f"CRIU's log: {kept}",)
        raise
    shutil.rmtree(work, ignore_errors=True)


def give_up_folder(repository: Path, name: str, work: Path) -> Path | None:
    """Remove the folder of a restore that failed, but for logs that cannot be moved.

    Returns:
        Where the log written last is now; None if there is no log.
    """
    kept = keep_failure_log(repository, name, work)
    left = work.iterdir() if kept is not None and kept.parent == work else (work,)
    for path in left:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    return kept
