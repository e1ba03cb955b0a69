"""Where a user's lasting data lies: the snapshots, and a private copy of CRIU."""

import os
from collections.abc import Mapping
from pathlib import Path

from gpusnap.errors import UsageError


def expand(path: str) -> Path:
    """A path whose leading ``~`` is a home folder.

    Raises:
        UsageError: It is the home folder of nobody known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        text = f"The home folder in {path!r} is not known"
        raise UsageError(text, cure="Set HOME, GPUSNAP_REPO or GPUSNAP_DATA_DIR") from None


def data_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for the user's lasting data: ``GPUSNAP_DATA_DIR``, else the XDG one.

    Raises:
        UsageError: Neither is named and the user has no home folder.
    """
    if named := environment.get("GPUSNAP_DATA_DIR"):
        return expand(named)
    shared = environment.get("XDG_DATA_HOME") or ""
    # The XDG specification has relative paths ignored.
    base = Path(shared) if shared.startswith("/") else expand("~/.local/share")
    return base / "gpusnap"


def default_repository(environment: Mapping[str, str] = os.environ) -> Path:
    """The repository used where none is named: ``GPUSNAP_REPO``, else one in the data folder.

    Raises:
        UsageError: The home folder in its path is not known.
    """
    if named := environment.get("GPUSNAP_REPO"):
        return expand(named)
    return data_directory(environment) / "repository"
