"""Snapshots on disk: naming, making, finding, checking and removing them."""

from gpusnap.folders import default_repository
from gpusnap.repository.contents import Damaged
from gpusnap.repository.digest import FileDigest
from gpusnap.repository.draft import Draft
from gpusnap.repository.layout import FORMAT_VERSION
from gpusnap.repository.logs import give_up_folder, restore_folder
from gpusnap.repository.manifest import (
    Host,
    Manifest,
    PhaseTime,
    SavedLink,
    SavedOptions,
    encodable,
    new_id,
    timestamp,
    version_for,
)
from gpusnap.repository.names import NameTakenError
from gpusnap.repository.parent import newest_parent, open_parent
from gpusnap.repository.pruning import Pruned, Refused, Removed
from gpusnap.repository.repository import Repository
from gpusnap.repository.resolve import locate, planned_path, resolve, resolve_new
from gpusnap.repository.retention import Age, Group, Grouping, RetentionPolicy, Verdict
from gpusnap.repository.snapshot import Snapshot, open_snapshot
from gpusnap.repository.tags import check_tags
from gpusnap.repository.verify import (
    FilesVerified,
    Verification,
    require_intact,
    verify,
    verify_files,
)

__all__ = [
    "FORMAT_VERSION",
    "Age",
    "Damaged",
    "Draft",
    "FileDigest",
    "FilesVerified",
    "Group",
    "Grouping",
    "Host",
    "Manifest",
    "NameTakenError",
    "PhaseTime",
    "Pruned",
    "Refused",
    "Removed",
    "Repository",
    "RetentionPolicy",
    "SavedLink",
    "SavedOptions",
    "Snapshot",
    "Verdict",
    "Verification",
    "check_tags",
    "default_repository",
    "encodable",
    "give_up_folder",
    "locate",
    "new_id",
    "newest_parent",
    "open_parent",
    "open_snapshot",
    "planned_path",
    "require_intact",
    "resolve",
    "resolve_new",
    "restore_folder",
    "timestamp",
    "verify",
    "verify_files",
    "version_for",
]
