"""The file in which the figures of all gpusnap processes add up.

It is an exposition, which node_exporter's textfile collector reads as it is. Whoever adds to it
reads it under a lock, adds, and puts the new one in its place by a rename.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpusnap.errors import GpusnapError
from gpusnap.folders import data_directory, expand
from gpusnap.metrics.figures import Figures, first_figures

TEXTFILE = "GPUSNAP_METRICS_TEXTFILE"
PORT = "GPUSNAP_METRICS_PORT"

_MARK = "# Written by gpusnap, which adds to these figures.\n"


def textfile(environment: Mapping[str, str] = os.environ) -> Path:
    """The file: ``GPUSNAP_METRICS_TEXTFILE``, else one in the user's data folder."""
    if named := environment.get(TEXTFILE):
        return expand(named)
    return data_directory(environment) / "metrics.prom"


def read(path: Path) -> Figures:
    """The figures so far, those of the beginning where there is no file.

    Raises:
        GpusnapError: The file cannot be read, or gpusnap did not write it.
    """
    from gpusnap.metrics.exposition import parse  # noqa: PLC0415 - only where metrics are wanted

    try:
        text = path.read_text()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        msg = f"The metrics in {path} cannot be read: {reason}"
        raise GpusnapError(msg) from error
    with contextlib.suppress(ValueError):
        if not text:
            return first_figures()
        if text.startswith(_MARK):
            return parse(text)
    msg = f"{path} holds no metrics of gpusnap"
    raise GpusnapError(msg, cure="Name another file, or remove this one")


def add(path: Path, later: Figures) -> None:
    """Add figures to the file.

    Raises:
        GpusnapError: The file holds something else.
        OSError: It cannot be written, and is as before.
    """
    from gpusnap.metrics.exposition import render  # noqa: PLC0415 - only where metrics are wanted

    if not os.environ.get(TEXTFILE):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path):
        figures = read(path)
        figures.merge(later)
        _replace(path, _MARK + render(figures))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(f"{path}.lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, text: str) -> None:
    # The collector takes every *.prom, so this must not be one.
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text)
        new.chmod(0o644)  # node_exporter is another user
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
