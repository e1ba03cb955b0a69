"""Whether a snapshot still is what was published."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpusnap.errors import IntegrityError, refuse
from gpusnap.hookspecs import Progress
from gpusnap.repository.digest import FileDigest, digest_files
from gpusnap.repository.layout import MANIFEST, MANIFEST_DIGEST
from gpusnap.repository.snapshot import Snapshot, read_manifest, require_snapshot
from gpusnap.repository.storage import as_path, printable, reason, storage
from gpusnap.repository.tree import Entry, scan
from gpusnap.types import Finding, Severity

_CURE = "Take the snapshot from a copy, or use another one"


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification read and found.

    Attributes:
        files: Files that were read.
        bytes: Their bytes.
        findings: One for each file that is not as it was; none means intact.
    """

    files: int
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def intact(self) -> bool:
        """True where every byte is as it was published."""
        return not self.findings


def _damage(code: str, text: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, text=text, cure=_CURE)


def _mismatch(saved: FileDigest, found: FileDigest | OSError) -> str | None:
    """How a file that is there differs from the one that was saved, in words."""
    match found:
        case OSError():
            return f"cannot be read: {reason(found)}"
        case _ if found.size != saved.size:
            return f"has {found.size} bytes instead of {saved.size}"
        case _ if found.sha256 != saved.sha256:
            return "has another SHA-256"
        case _ if found.crc32 != saved.crc32:
            return "has another CRC-32"
    return None


def _code(saved: FileDigest, found: FileDigest | OSError) -> str:
    if isinstance(found, OSError):
        return "snapshot-file-unreadable"
    shorter = found.size < saved.size
    return "snapshot-file-truncated" if shorter else "snapshot-file-altered"


def _judge(
    saved: FileDigest, entry: Entry | None, found: FileDigest | OSError | None
) -> Finding | None:
    name = f"File {printable(saved.path)}"
    if entry and not entry.regular:
        return _damage("snapshot-file-altered", f"{name} is a {entry.kind}")
    if found is None:
        return _damage("snapshot-file-missing", f"{name} is missing")
    words = _mismatch(saved, found)
    return _damage(_code(saved, found), f"{name} {words}") if words else None


def _extra(entries: dict[str, Entry], known: set[str]) -> Iterator[Finding]:
    for path in sorted(entries.keys() - known):
        text = f"A {entries[path].kind}, {printable(path)}, was not part of the snapshot"
        yield _damage("snapshot-file-extra", text)


def verify(snapshot: Snapshot | str | Path, progress: Progress) -> Verification:
    """Read all of a snapshot and compare it with its manifest; damage is a finding.

    Args:
        snapshot: The snapshot, or its folder where it is too damaged to open.
        progress: Called with bytes read and bytes in all, by one thread at a time.

    Returns:
        Counts and findings.

    Raises:
        NotFoundError: There is no snapshot.
        IncompatibleError: A newer gpusnap wrote it.
        PrivilegeError: It may not be read.
    """
    folder = snapshot.path if isinstance(snapshot, Snapshot) else as_path(snapshot)
    require_snapshot(folder)
    with storage("read", folder):
        entries = {entry.path: entry for entry in scan(folder) if not entry.folder}
    try:
        saved = {file.path: file for file in read_manifest(folder).files}
    except IntegrityError as error:
        finding = _damage("snapshot-manifest-damaged", error.text)
        return Verification(files=0, bytes=0, findings=(finding,))
    wanted = [entry for path, entry in entries.items() if path in saved and entry.regular]
    found = digest_files(folder, wanted, progress)
    judged = (_judge(file, entries.get(path), found.get(path)) for path, file in saved.items())
    extra = _extra(entries, {*saved, MANIFEST, MANIFEST_DIGEST})
    read = [each for each in found.values() if isinstance(each, FileDigest)]
    return Verification(
        files=len(read),
        bytes=sum(digest.size for digest in read),
        findings=(*filter(None, judged), *extra),
    )


def require_intact(snapshot: Snapshot, progress: Progress) -> Verification:
    """Verify before a restore.

    Raises:
        IntegrityError: A file is not as it was; the first is named, the others are details.
    """
    verification = verify(snapshot, progress)
    refuse(verification.findings, IntegrityError)
    return verification
