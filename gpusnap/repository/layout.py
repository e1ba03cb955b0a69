"""Where everything lies in a repository; docs/reference/snapshot-format.md explains each."""

import os
from collections.abc import Mapping
from pathlib import Path

FORMAT_VERSION = 1
"""Version of the repository and the manifest that this code writes."""

CONFIG = "gpusnap.json"
MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest.json.sha256"
IMAGES = "criu"
REGIONS = "regions"
LOGS = "logs"
PACKS = "packs"

DRAFT_PREFIX = ".draft-"
REMOVED_PREFIX = ".removed-"
DRAFT_LOCK = "lock"
DRAFT_SNAPSHOT = "snapshot"
DRAFT_WORK = "work"

LATEST = "latest"
RESERVED_NAMES = frozenset({LATEST, "draft", PACKS, LOGS, CONFIG})
"""Names no snapshot may have: they mean something else in a repository or on a command line."""


def default_repository(environment: Mapping[str, str] = os.environ) -> Path:
    """The repository used where none is named.

    Returns:
        ``GPUSNAP_REPO``, else ``gpusnap/repository`` in the user's data folder.
    """
    named = environment.get("GPUSNAP_REPO")
    if named:
        return Path(named).expanduser()
    # The XDG specification has relative values ignored.
    data = Path(environment.get("XDG_DATA_HOME", ""))
    base = data if data.is_absolute() else Path("~/.local/share").expanduser()
    return base / "gpusnap" / "repository"
