import fcntl
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusnap.errors import BusyError, IncompatibleError, IntegrityError, NotFoundError
from gpusnap.hookspecs import Progress
from gpusnap.repository import (
    FilesVerified,
    Repository,
    Snapshot,
    open_snapshot,
    require_intact,
    verify,
    verify_files,
)
from gpusnap.repository.layout import WITH_PARTS
from gpusnap.repository.locks import removing_lock
from gpusnap.repository.parts import PART, STEP
from gpusnap.types import Severity
from tests.repository.samples import FILES, alter, in_version_1, silent, take

CORE = "criu/core-7.img"
PAGES = "criu/pages-1.img"


def test_intact(repository: Repository) -> None:
    snapshot = take(repository, "a")
    seen: list[tuple[int, int]] = []
    found = verify(snapshot, lambda *counts: seen.append(counts))
    assert (found.files, found.bytes, found.findings) == (len(FILES), snapshot.size, ())
    assert seen[-1] == (snapshot.size, snapshot.size)
    assert require_intact(snapshot, silent) == found


def test_a_copy_is_as_good(repository: Repository, tmp_path: Path) -> None:
    shutil.copytree(take(repository, "a").path, tmp_path / "copy")
    assert verify(tmp_path / "copy", silent).intact


def missing(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    os.truncate(path, 3)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def replaced(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def link(path: Path) -> None:
    path.rename(path.parent.parent.parent / "moved")
    path.symlink_to("../../moved")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "code", "words"),
    [
        (missing, "snapshot-file-missing", "is missing"),
        (truncated, "snapshot-file-truncated", "has 3 bytes instead of 9"),
        (longer, "snapshot-file-altered", "has 10 bytes instead of 9"),
        (replaced, "snapshot-file-altered", "has another SHA-256"),
        (link, "snapshot-file-altered", "is a symbolic link"),
        (folder, "snapshot-file-missing", "is missing"),
        (pipe, "snapshot-file-altered", "is a pipe"),
    ],
)
def test_damage(
    repository: Repository, damage: Callable[[Path], None], code: str, words: str
) -> None:
    snapshot = take(repository, "a")
    damage(snapshot.path / CORE)
    (finding,) = verify(snapshot, silent).findings
    assert (finding.code, finding.severity) == (code, Severity.ERROR)
    assert finding.text == f"File {CORE} {words}"
    assert finding.cure
    with pytest.raises(IntegrityError, match=rf"File {CORE} {words} \[{code}\]"):
        require_intact(snapshot, silent)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.write_bytes(b""), "regular file"),
        (lambda path: path.symlink_to("/etc"), "symbolic link"),
        (os.mkfifo, "pipe"),
    ],
)
@pytest.mark.parametrize("name", ["extra", "criu/pages-2.img", "criu/\x1b[2J\udcff"])
def test_extra(
    repository: Repository, make: Callable[[Path], object], kind: str, name: str
) -> None:
    snapshot = take(repository, "a")
    make(snapshot.path / name)
    (finding,) = verify(snapshot, silent).findings
    assert finding.code == "snapshot-file-extra"
    assert finding.text.startswith(f"A {kind}, ")
    assert finding.text.isprintable()
    finding.text.encode()


@pytest.mark.parametrize("name", ["manifest.json", "manifest.json.sha256"])
@pytest.mark.parametrize("damage", [missing, truncated, longer, replaced, link, folder, pipe])
def test_manifest(repository: Repository, name: str, damage: Callable[[Path], None]) -> None:
    snapshot = take(repository, "a")
    damage(snapshot.path / name)
    for given_as in (snapshot, snapshot.path):
        (finding,) = verify(given_as, silent).findings
        assert finding.code == "snapshot-manifest-damaged"
        assert str(snapshot.path) in finding.text


def test_a_manifest_that_leads_out(repository: Repository, tmp_path: Path) -> None:
    """A forged manifest whose own digest is right must not have other files read."""
    (tmp_path / "secret").write_bytes(b"x")
    snapshot = take(repository, "a")
    alter(snapshot, files=[{"path": "../../secret", "size": 1, "crc32": 0, "sha256": "0" * 64}])
    (finding,) = verify(snapshot, silent).findings
    assert finding.code == "snapshot-manifest-damaged"


def test_all_damage_is_told_at_once(repository: Repository) -> None:
    snapshot = take(repository, "a")
    missing(snapshot.path / CORE)
    replaced(snapshot.path / "criu/pages-1.img")
    (snapshot.path / "extra").write_bytes(b"")
    found = verify(snapshot, silent)
    assert len(found.findings) == 3
    with pytest.raises(IntegrityError, match=CORE) as caught:
        require_intact(snapshot, silent)
    assert len(caught.value.details) == 2


def test_what_is_no_snapshot(repository: Repository, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", repository.path, repository.path / "gpusnap.json"):
        with pytest.raises(NotFoundError):
            verify(path, silent)


def test_nobody_removes_what_is_verified(repository: Repository) -> None:
    snapshot = take(repository, "a")

    def remove(_done: int, _total: int) -> None:
        with pytest.raises(BusyError, match="Snapshot a is in use"):
            repository.remove(snapshot)

    for given_as in (snapshot, snapshot.path):
        assert verify(given_as, remove).intact


def test_a_snapshot_that_is_being_removed(repository: Repository) -> None:
    snapshot = take(repository, "a")
    with removing_lock(snapshot.path / "manifest.json"):
        with pytest.raises(BusyError, match="a is being removed"):
            verify(snapshot, silent)
        # Another moment of the same: its folder has gone, as the last step of all.
        snapshot.path.rename(repository.path / ".removed-a")
        with pytest.raises(NotFoundError):
            verify(snapshot, silent)


def test_a_snapshot_that_goes_just_before_it_is_held(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, flock = take(repository, "a"), fcntl.flock

    def flock_late(descriptor: int, operation: int) -> None:
        if snapshot.path.exists():
            snapshot.path.rename(repository.path / ".removed-a")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    for read in (lambda: verify(snapshot, silent), snapshot.hold().__enter__):
        with pytest.raises(NotFoundError):
            read()
        (repository.path / ".removed-a").rename(snapshot.path)


def test_newer_format_is_no_damage(repository: Repository) -> None:
    snapshot = take(repository, "a")
    alter(snapshot, format_version=3)
    with pytest.raises(IncompatibleError):
        verify(snapshot, silent)


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return take(Repository.create(tmp_path_factory.mktemp("flip")), "a")


@settings(max_examples=150)
@given(st.data())
def test_every_flipped_bit_is_found(flipped: Snapshot, data: st.DataObject) -> None:
    files = sorted(path for path in flipped.path.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from([path for path in files if path.stat().st_size]))
    good = path.read_bytes()
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bad)
    try:
        assert not verify(flipped, silent).intact
    finally:
        path.write_bytes(good)
    assert verify(flipped, silent).intact


LARGE = 2 * PART + STEP + 7


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A snapshot with a large file of three parts, and one of two."""
    repository = Repository.create(tmp_path_factory.mktemp("large"))
    files = {PAGES: os.urandom(LARGE), "criu/pages-2.img": os.urandom(PART + 1)}
    return take(repository, "a", FILES | files)


def change(path: Path, offset: int, pattern: bytes) -> None:
    """Turn over bits of a file; the same again turns them back."""
    with path.open("r+b") as file:
        file.seek(offset)
        found = file.read(len(pattern))
        file.seek(offset)
        file.write(bytes(a ^ b for a, b in zip(found, pattern, strict=True)))


def test_a_large_file_is_summed_in_parts(large: Snapshot) -> None:
    files = {file.path: file for file in open_snapshot(large.path).manifest.files}
    assert large.manifest.format_version == WITH_PARTS
    assert {path for path, file in files.items() if file.in_parts} == {PAGES, "criu/pages-2.img"}
    found = verify(large, silent)
    assert (found.files, found.bytes, found.findings) == (len(files), large.size, ())


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([0, PART - 1, PART, 2 * PART - 1, 2 * PART, LARGE - 1])
    | st.integers(0, LARGE - 1),
    st.integers(0, 7),
)
def test_every_flipped_bit_of_a_large_file_is_found(large: Snapshot, byte: int, bit: int) -> None:
    change(large.path / PAGES, byte, bytes([1 << bit]))
    try:
        (finding,) = verify(large, silent).findings
        assert finding.text == f"File {PAGES} has another BLAKE3"
        with pytest.raises(IntegrityError, match="has another BLAKE3"):
            verify_files(large, silent)
    finally:
        change(large.path / PAGES, byte, bytes([1 << bit]))


CRC_SPARES = (0x1DB710641).to_bytes(5, "little")
"""The polynomial of CRC-32, lowest power last: any file keeps its CRC-32 under these bits."""


@pytest.mark.parametrize("offset", [1000, PART - 2, LARGE - 5])
def test_damage_that_no_crc_tells(large: Snapshot, offset: int) -> None:
    path = large.path / PAGES
    crc = zlib.crc32(path.read_bytes())
    change(path, offset, CRC_SPARES)
    try:
        assert zlib.crc32(path.read_bytes()) == crc
        assert not verify(large, silent).intact
    finally:
        change(path, offset, CRC_SPARES)
    assert verify(large, silent).intact


@pytest.mark.parametrize("length", [0, PART - 1, PART, LARGE - 1, LARGE + 1, 4 * PART])
def test_a_large_file_of_another_length(large: Snapshot, tmp_path: Path, length: int) -> None:
    snapshot = Snapshot(tmp_path / "copy", large.manifest)
    shutil.copytree(large.path, snapshot.path)
    os.truncate(snapshot.path / PAGES, length)
    (finding,) = verify(snapshot, silent).findings
    assert finding.text == f"File {PAGES} has {length} bytes instead of {LARGE}"


@pytest.mark.parametrize("size", [0, 1, PART, LARGE - 1, LARGE + 1, 1 << 62])
def test_a_wrong_length_in_the_manifest(large: Snapshot, tmp_path: Path, size: int) -> None:
    snapshot = Snapshot(tmp_path / "copy", large.manifest)
    shutil.copytree(large.path, snapshot.path)
    files = msgspec.to_builtins(large.manifest.files)
    next(file for file in files if file["path"] == PAGES)["size"] = size
    alter(snapshot, files=files)
    (finding,) = verify(snapshot.path, silent).findings
    assert finding.text == f"File {PAGES} has {LARGE} bytes instead of {size}"


def test_a_manifest_that_swaps_two_large_files(large: Snapshot, tmp_path: Path) -> None:
    snapshot = Snapshot(tmp_path / "copy", large.manifest)
    shutil.copytree(large.path, snapshot.path)
    (snapshot.path / PAGES).rename(tmp_path / "pages")
    (snapshot.path / "criu/pages-2.img").rename(snapshot.path / PAGES)
    (tmp_path / "pages").rename(snapshot.path / "criu/pages-2.img")
    assert len(verify(snapshot, silent).findings) == 2


def test_a_small_file_may_be_summed_in_parts(repository: Repository) -> None:
    """The record of a file says how it was summed, and not its length."""
    snapshot = take(repository, "a")
    files = msgspec.to_builtins(snapshot.manifest.files)
    for file in files:
        data = (snapshot.path / file["path"]).read_bytes()
        sums = blake3(data).digest() if data else b""
        file |= {"sha256": None, "blake3_parts": blake3(sums).hexdigest()}
    alter(snapshot, files=files, format_version=WITH_PARTS)
    assert verify(snapshot.path, silent).intact
    replaced(snapshot.path / CORE)
    (finding,) = verify(snapshot.path, silent).findings
    assert finding.text == f"File {CORE} has another BLAKE3"


def test_a_large_file_without_a_sum(large: Snapshot, tmp_path: Path) -> None:
    """Only a pack that an index knows may have none."""
    snapshot = Snapshot(tmp_path / "copy", large.manifest)
    shutil.copytree(large.path, snapshot.path)
    files = msgspec.to_builtins(large.manifest.files)
    next(file for file in files if file["path"] == PAGES).pop("blake3_parts")
    alter(snapshot, files=files)
    assert not verify(snapshot.path, silent).intact


def test_a_snapshot_from_before(large: Snapshot, tmp_path: Path) -> None:
    snapshot = Snapshot(tmp_path / "copy", large.manifest)
    shutil.copytree(large.path, snapshot.path)
    in_version_1(snapshot)
    assert {file.in_parts for file in open_snapshot(snapshot.path).manifest.files} == {False}
    assert verify(snapshot.path, silent).intact
    verify_files(open_snapshot(snapshot.path), silent)
    change(snapshot.path / PAGES, LARGE // 2, b"\1")
    (finding,) = verify(snapshot.path, silent).findings
    assert finding.text == f"File {PAGES} has another SHA-256"


def test_files_are_verified_while_something_else_is_done(repository: Repository) -> None:
    snapshot = take(repository, "one")
    told: list[tuple[int, int]] = []
    with FilesVerified(snapshot) as files:
        assert files.wait(lambda done, of: told.append((done, of))) is None
    size = sum(file.size for file in snapshot.manifest.files)
    assert told[-1] == (size, size)


def test_damage_is_told_by_who_waits_for_the_verification(repository: Repository) -> None:
    snapshot = take(repository, "one")
    (snapshot.path / "criu/core-7.img").write_bytes(b"other")
    with FilesVerified(snapshot) as files:
        time.sleep(0.2)
        with pytest.raises(IntegrityError, match=r"core-7\.img"):
            files.wait(silent)


def test_a_verification_is_called_off_with_what_it_was_for(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[BaseException] = []

    def endless(_snapshot: Snapshot, progress: Progress) -> None:
        try:
            while True:
                progress(1, 2)
                time.sleep(0.001)
        except BaseException as error:
            ended.append(error)
            raise

    # The package has a function of the module's name
    monkeypatch.setattr(sys.modules["gpusnap.repository.verify"], "verify_files", endless)
    with pytest.raises(KeyboardInterrupt), FilesVerified(take(repository, "one")):
        raise KeyboardInterrupt
    assert len(ended) == 1
