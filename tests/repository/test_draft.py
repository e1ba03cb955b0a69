import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from gpusnap.errors import BusyError, GpusnapError, UsageError
from gpusnap.hookspecs import Progress
from gpusnap.repository import NameTakenError, Repository, open_snapshot, verify
from gpusnap.repository import draft as draft_module
from gpusnap.repository.digest import digest_files
from gpusnap.repository.tree import Entry
from tests.repository.samples import FILES, fill, hidden, manifest, silent, take


def modes(folder: Path) -> set[tuple[bool, int]]:
    return {(path.is_dir(), path.stat().st_mode & 0o777) for path in (folder, *folder.rglob("*"))}


def test_published(repository: Repository) -> None:
    snapshot = take(repository, "epoch_10.ckpt")
    assert snapshot.path == repository.path / "epoch_10.ckpt"
    assert open_snapshot(snapshot.path) == snapshot
    assert repository.snapshots() == (snapshot,)
    assert verify(snapshot, silent).intact
    assert snapshot.size == sum(map(len, FILES.values()))
    assert (snapshot.images / "core-7.img").read_bytes() == b"registers"
    assert hidden(repository.path) == []


def test_private(repository: Repository) -> None:
    before = os.umask(0)
    try:
        snapshot = take(repository, "a")
    finally:
        os.umask(before)
    assert modes(snapshot.path) == {(False, 0o600), (True, 0o700)}


def test_sha256sum_checks_the_manifest(repository: Repository) -> None:
    snapshot = take(repository, "a")
    command = ["sha256sum", "--strict", "-c", "manifest.json.sha256"]
    done = subprocess.run(command, cwd=snapshot.path, check=True, capture_output=True, text=True)
    assert done.stdout == "manifest.json: OK\n"


def test_nothing_is_listed_before_publication(repository: Repository) -> None:
    with repository.prepare("a") as draft:
        fill(draft, FILES)
        draft.digest(silent)
        assert (repository.snapshots(), repository.damaged()) == ((), ())
    assert hidden(repository.path) == []


def test_everything_is_durable_before_the_name_is(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the calls: each file and folder, the rename, the repository's folder."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watched_fsync(descriptor: int) -> None:
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def watched_rename(old: Path, new: Path) -> None:
        calls.append(f"rename to {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    with repository.prepare("a") as draft:
        fill(draft, FILES)
        digests = draft.digest(silent)
        draft.publish(manifest("a", digests))
        published = calls.index("rename to a")
        names = {*FILES, "manifest.json", "manifest.json.sha256", "criu", "logs", ""}
        wanted = {str(draft.contents / name) for name in names}
    assert wanted <= set(calls[:published])
    assert calls[published + 1] == str(repository.path)


def test_a_folder_that_does_not_become_durable_is_taken_back(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(repository.path):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    with repository.prepare("a") as draft:
        fill(draft, FILES)
        digests = draft.digest(silent)
        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(GpusnapError, match=r"Cannot publish .*/repo/a: the disk failed"):
            draft.publish(manifest("a", digests))
        assert repository.snapshots() == ()


def test_two_cannot_make_one_name(repository: Repository) -> None:
    with repository.prepare("a"), pytest.raises(BusyError, match="Snapshot a is being made"):
        repository.prepare("a")
    with repository.prepare("a"):
        pass


def test_an_existing_name_is_kept(repository: Repository) -> None:
    first = take(repository, "a")
    with pytest.raises(NameTakenError, match="Snapshot a exists in ") as caught:
        repository.prepare("a")
    assert "gpusnap rm" in str(caught.value.cure)
    assert verify(first, silent).intact


def other_folder(path: Path) -> None:
    path.mkdir()
    (path / "theirs").write_bytes(b"x")


def other_file(path: Path) -> None:
    path.write_bytes(b"x")


def other_link(path: Path) -> None:
    path.symlink_to(path.parent)


@pytest.mark.parametrize("appear", [other_folder, other_file, other_link])
def test_what_appears_under_the_name_meanwhile_is_kept(
    repository: Repository, appear: Callable[[Path], None]
) -> None:
    path = repository.path / "a"
    with repository.prepare("a") as draft:
        fill(draft, FILES)
        digests = draft.digest(silent)
        appear(path)
        before = path.lstat()
        with pytest.raises(UsageError, match="Snapshot a exists in "):
            draft.publish(manifest("a", digests))
    assert os.path.samestat(path.lstat(), before)
    assert repository.snapshots() == ()
    assert hidden(repository.path) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "criu/new.img").write_bytes(b""),
        lambda folder: (folder / "criu/core-7.img").unlink(),
        lambda folder: (folder / "criu/core-7.img").write_bytes(b"longer than before"),
    ],
)
def test_a_draft_that_changed_is_not_published(
    repository: Repository, change: Callable[[Path], object]
) -> None:
    with repository.prepare("a") as draft:
        fill(draft, FILES)
        digests = draft.digest(silent)
        change(draft.contents)
        with pytest.raises(GpusnapError, match="does not list the files") as caught:
            draft.publish(manifest("a", digests))
        assert caught.value.details in {("criu/new.img",), ("criu/core-7.img",)}
    assert repository.snapshots() == ()


def test_links_are_not_published(repository: Repository) -> None:
    with repository.prepare("a") as draft:
        (draft.images / "pages-1.img").symlink_to("/etc/passwd")
        with pytest.raises(GpusnapError, match="a symbolic link stands where"):
            draft.digest(silent)


def test_logs(repository: Repository) -> None:
    with repository.prepare("a") as draft:
        (draft.work / "dump.log").write_text("so far")
        draft.keep_log(draft.work / "dump.log")
        (draft.work / "dump.log").write_text("so far, and on")
        snapshot = draft.publish(manifest("a", draft.digest(silent)))
        assert draft.work.is_dir(), "CRIU writes on in it"
    assert (snapshot.logs / "dump.log").read_text() == "so far"
    assert verify(snapshot, silent).intact


def test_failure_log_outlives_the_draft(repository: Repository) -> None:
    with repository.prepare("a") as draft:
        assert draft.keep_failure_log() is None
        (draft.work / "dump.log").write_text("Error (criu/x.c:1): no")
        kept = draft.keep_failure_log()
    assert kept == repository.path / "logs/a-dump.log"
    assert kept.read_text() == "Error (criu/x.c:1): no"
    assert modes(kept.parent) == {(False, 0o600), (True, 0o700)}
    assert (repository.snapshots(), repository.damaged()) == ((), ())


def test_sums_taken_early(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the images alone, each read once; what is made anew is summed anew."""
    read: list[str] = []

    def note(root: Path, entries: Iterable[Entry], progress: Progress) -> dict[str, Any]:
        found = digest_files(root, entries, progress)
        read.extend(found)
        return found

    monkeypatch.setattr(draft_module, "digest_files", note)
    images = [name for name in FILES if name.startswith("criu/")]
    with repository.prepare("a") as draft:
        fill(draft, {"criu/core-7.img": b"of an attempt that came to nothing"})
        draft.sum_early()
        draft.start_over()
        read.clear()
        fill(draft, FILES)
        draft.sum_early()
        assert sorted(read) == images
        files = draft.digest(silent)
        assert sorted(read) == sorted(FILES)
        snapshot = draft.publish(manifest("a", files))
    assert verify(snapshot, silent).intact
    with repository.prepare("b") as draft:
        fill(draft, FILES)
        assert draft.digest(silent) == files
