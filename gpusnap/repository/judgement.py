"""How a file of a snapshot differs from what was published, as a finding."""

from collections.abc import Iterator

import msgspec

from gpusnap.errors import IntegrityError
from gpusnap.repository.digest import FileDigest
from gpusnap.repository.storage import printable, reason
from gpusnap.repository.tree import Entry
from gpusnap.types import Finding, Severity

_CURE = "Take the snapshot from a copy, or use another one"


def _damage(code: str, text: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, text=text, cure=_CURE)


def _name(path: str) -> str:
    return f"File {printable(path)}"


def _mismatch(saved: FileDigest, found: FileDigest | OSError) -> str | None:
    """How a file that is there differs from the one that was saved, in words."""
    match found:
        case OSError():
            return f"cannot be read: {reason(found)}"
        case _ if found.size != saved.size:
            return f"has {found.size} bytes instead of {saved.size}"
        case _ if found.sha256 != saved.sha256:
            return "has another SHA-256"
        case _ if found.blake3_parts != saved.blake3_parts:
            return "has another BLAKE3"
        case _ if found.crc32 != saved.crc32:
            return "has another CRC-32"
    return None


def _code(saved: FileDigest, found: FileDigest | OSError) -> str:
    if isinstance(found, OSError):
        return "snapshot-file-unreadable"
    shorter = found.size < saved.size
    return "snapshot-file-truncated" if shorter else "snapshot-file-altered"


def judge(
    saved: FileDigest, entry: Entry | None, found: FileDigest | OSError | None
) -> Finding | None:
    """What is wrong with a file that was read, or could not be.

    Args:
        saved: The file as the manifest has it.
        entry: What is there; None for nothing.
        found: What was read of a regular file.
    """
    if entry is None or not entry.regular or found is None:
        return _misplaced(saved, entry)
    words = _mismatch(saved, found)
    return _damage(_code(saved, found), f"{_name(saved.path)} {words}") if words else None


def judge_unread(saved: FileDigest, entry: Entry | None) -> Finding | None:
    """What can be seen of a file without reading it: that it is gone, or has another length."""
    if entry is None or not entry.regular:
        return _misplaced(saved, entry)
    return judge(saved, entry, msgspec.structs.replace(saved, size=entry.size))


def _misplaced(saved: FileDigest, entry: Entry | None) -> Finding:
    if entry is None:
        return _damage("snapshot-file-missing", f"{_name(saved.path)} is missing")
    return _damage("snapshot-file-altered", f"{_name(saved.path)} is a {entry.kind}")


def altered(path: str, words: str) -> Finding:
    """A file that is not what it was, in those words."""
    return _damage("snapshot-file-altered", f"{_name(path)} {words}")


def chunk_fault(path: str, words: str) -> Finding:
    """A chunk in a pack that is not what it was."""
    return _damage("snapshot-chunk-damaged", f"{_name(path)} {words}")


def more_faults(count: int) -> Finding:
    """Damage of packs that is not told one by one."""
    return _damage("snapshot-chunk-damaged", f"{count} more chunks of packs are damaged")


def manifest_fault(error: IntegrityError) -> Finding:
    """A manifest that cannot be read."""
    return _damage("snapshot-manifest-damaged", error.text)


def extra(entries: dict[str, Entry], known: set[str]) -> Iterator[Finding]:
    """What is there and was not part of the snapshot."""
    for path in sorted(entries.keys() - known):
        text = f"A {entries[path].kind}, {printable(path)}, was not part of the snapshot"
        yield _damage("snapshot-file-extra", text)
