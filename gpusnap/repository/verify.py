"""Whether a snapshot still is what was published."""

from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from gpusnap.datapath import Saved, Subset
from gpusnap.datapath.crew import Crew
from gpusnap.errors import IntegrityError, refuse
from gpusnap.hookspecs import Progress
from gpusnap.repository.digest import FileDigest, digest_files
from gpusnap.repository.judgement import extra, judge, manifest_fault
from gpusnap.repository.layout import MANIFEST, MANIFEST_DIGEST
from gpusnap.repository.packs import INDEX_PATH, Reading, verify_packs
from gpusnap.repository.snapshot import Snapshot, read_manifest, reading
from gpusnap.repository.storage import as_path, storage
from gpusnap.repository.tree import Entry, processors, scan
from gpusnap.types import Finding


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification read and found.

    Attributes:
        files: Files that were read.
        bytes: Bytes that were read.
        total: Bytes of all files of the snapshot.
        findings: One for each file, and each chunk of a pack, that is not as it was; none means
            that all that was read is intact.
    """

    files: int
    bytes: int
    total: int
    findings: tuple[Finding, ...]

    @property
    def intact(self) -> bool:
        """True where every byte that was read is as it was published."""
        return not self.findings


class _Verified(NamedTuple):
    """A verification, and what the index of the packs tells, if there are any."""

    verification: Verification
    saved: Saved | None = None


def verify(
    snapshot: Snapshot | str | Path,
    progress: Progress,
    *,
    workers: int | None = None,
    subset: Subset | None = None,
) -> Verification:
    """Read a snapshot and compare it with its manifest; damage is a finding.

    Nobody can remove it meanwhile, unless it has no manifest.

    Args:
        snapshot: The snapshot, or its folder where it is too damaged to open.
        progress: Called with bytes read and bytes in all, by one thread at a time.
        workers: Threads; None for one a CPU.
        subset: The part of the chunks in packs that is read, besides all other files; None for
            all of them.

    Returns:
        Counts and findings.

    Raises:
        NotFoundError: There is no snapshot.
        BusyError: It is being removed.
        IncompatibleError: A newer gpusnap wrote it.
        PrivilegeError: It may not be read.
    """
    folder = snapshot.path if isinstance(snapshot, Snapshot) else as_path(snapshot)
    options = Reading(workers=workers or processors(), subset=subset)
    return _verify(folder, progress, options).verification


def _verify(folder: Path, progress: Progress, options: Reading) -> _Verified:
    with reading(folder):
        return _verify_held(folder, progress, options)


def _verify_held(folder: Path, progress: Progress, options: Reading) -> _Verified:
    with storage("read", folder):
        entries = {entry.path: entry for entry in scan(folder) if not entry.folder}
    try:
        saved = {file.path: file for file in read_manifest(folder).files}
    except IntegrityError as error:
        finding = manifest_fault(error)
        return _Verified(Verification(files=0, bytes=0, total=0, findings=(finding,)))
    return _verify_listed(folder, entries, saved, progress, options)


def _verify_listed(
    folder: Path,
    entries: dict[str, Entry],
    saved: dict[str, FileDigest],
    progress: Progress,
    options: Reading,
) -> _Verified:
    """Read the packs last: their index is one of the other files."""
    single = {path: file for path, file in saved.items() if not file.is_pack}
    packs = {path: file for path, file in saved.items() if file.is_pack}
    wanted = [entry for path, entry in entries.items() if path in single and entry.regular]
    done = sum(entry.size for entry in wanted)
    rest = sum(file.size for file in packs.values())
    found = digest_files(
        folder,
        wanted,
        lambda now, _: progress(now, done + rest),
        workers=options.workers,
        in_parts=lambda entry: single[entry.path].in_parts,
    )
    wrong = {
        path: finding
        for path, file in single.items()
        if (finding := judge(file, entries.get(path), found.get(path)))
    }
    checked = verify_packs(
        folder,
        packs,
        entries,
        lambda now, total: progress(done + now, done + total),
        None if INDEX_PATH in wrong else options,
    )
    read = [each for each in found.values() if isinstance(each, FileDigest)]
    verification = Verification(
        files=len(read) + checked.files,
        bytes=sum(digest.size for digest in read) + checked.bytes,
        total=sum(file.size for file in saved.values()),
        findings=(
            *wrong.values(),
            *checked.findings,
            *extra(entries, {*saved, MANIFEST, MANIFEST_DIGEST}),
        ),
    )
    return _Verified(verification, checked.saved)


def require_intact(snapshot: Snapshot, progress: Progress) -> Verification:
    """Verify all of a snapshot.

    Args:
        snapshot: The snapshot.
        progress: Called with bytes read and bytes in all.

    Raises:
        IntegrityError: A file is not as it was; the first is named, the others are details.
    """
    verification = verify(snapshot, progress)
    refuse(verification.findings, IntegrityError)
    return verification


def verify_files(snapshot: Snapshot, progress: Progress) -> Saved | None:
    """Verify before a restore, but for the memory in packs.

    A restore compares every chunk of it when it writes it, before any task runs, and reads it
    only once.

    Args:
        snapshot: The snapshot.
        progress: Called with bytes read and bytes in all.

    Returns:
        What the index of the packs tells; None where no memory is in any.

    Raises:
        IntegrityError: A file is not as it was; the first is named, the others are details.
    """
    options = Reading(workers=processors(), placed=snapshot.manifest.memory is None)
    verification, saved = _verify(snapshot.path, progress, options)
    refuse(verification.findings, IntegrityError)
    return saved


class FilesVerified:
    """Does what :func:`verify_files` does in a thread, while the block does something else.

    Whatever is under way when the block is left is called off.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._crew = Crew()
        self._done, self._of = 0, snapshot.size
        self._saved: Saved | None = None

    def __enter__(self) -> Self:
        """Begin."""
        self._crew.start(1, self._verify)
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the thread, which ends soon."""
        self._crew.stop()

    def _verify(self, _number: int) -> None:
        self._saved = verify_files(self._snapshot, self._note)

    def _note(self, done: int, of: int) -> None:
        self._crew.check()
        self._done, self._of = done, of

    def wait(self, progress: Progress) -> Saved | None:
        """Wait for the end of it; arguments, answer and errors are those of :func:`verify_files`.

        May be called once.
        """
        crew = self._crew

        def tell(done: int, _: int) -> None:
            progress(done, self._of)

        crew.watch(tell, 0, lambda: self._done, lambda: crew.ended)
        crew.join()
        return self._saved
