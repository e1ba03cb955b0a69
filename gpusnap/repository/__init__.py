"""Snapshots on disk: naming, making, finding, checking and removing them."""

from gpusnap.folders import default_repository
from gpusnap.repository.digest import FileDigest
from gpusnap.repository.draft import Draft
from gpusnap.repository.layout import FORMAT_VERSION
from gpusnap.repository.logs import restore_folder
from gpusnap.repository.manifest import (
    Host,
    Manifest,
    PhaseTime,
    SavedOptions,
    new_id,
    timestamp,
)
from gpusnap.repository.names import NameTakenError
from gpusnap.repository.repository import Damaged, Repository
from gpusnap.repository.resolve import locate, planned_path, resolve, resolve_new
from gpusnap.repository.snapshot import Snapshot, open_snapshot
from gpusnap.repository.verify import Verification, require_intact, verify

__all__ = [
    "FORMAT_VERSION",
    "Damaged",
    "Draft",
    "FileDigest",
    "Host",
    "Manifest",
    "NameTakenError",
    "PhaseTime",
    "Repository",
    "SavedOptions",
    "Snapshot",
    "Verification",
    "default_repository",
    "locate",
    "new_id",
    "open_snapshot",
    "planned_path",
    "require_intact",
    "resolve",
    "resolve_new",
    "restore_folder",
    "timestamp",
    "verify",
]
