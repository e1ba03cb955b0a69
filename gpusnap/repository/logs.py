"""Logs of operations that failed, kept in the repository."""

import shutil
from contextlib import suppress
from pathlib import Path

from gpusnap.repository.layout import CONFIG, LOGS
from gpusnap.repository.storage import FILE_MODE, make_folder


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
