"""Where everything lies in a repository; docs/reference/snapshot-format.md explains each."""

FORMAT_VERSION = 1
"""Version of the repository, and of a manifest in which no file is summed in parts."""
WITH_PARTS = 2
"""Version of a manifest in which one is, the newest that this code reads."""

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
