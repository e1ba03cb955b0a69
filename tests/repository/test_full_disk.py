"""What happens where there is no room, at each place where room is needed."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpusnap.errors import GpusnapError
from gpusnap.repository import Repository, Snapshot, verify
from tests.repository.samples import FILES, fill, hidden, manifest, silent, take

PAGE = os.sysconf("SC_PAGE_SIZE")


CURE = "Free space on that file system, or choose another repository"


def attempt(path: Path) -> Snapshot | GpusnapError | None:
    """Take a snapshot; None where there is no room for the images that CRIU would write."""
    try:
        return take(Repository.create(path), "a")
    except GpusnapError as error:
        return error
    except OSError:
        return None


def test_no_room_for_names(mounted: Callable[[str], Path]) -> None:
    """With ever more files allowed: each step is refused in a sentence, until all succeed."""
    sentences = set()
    for allowed in range(1, 100):
        path = mounted(f"size=1m,nr_inodes={allowed}") / "repo"
        found = attempt(path)
        if isinstance(found, Snapshot):
            break
        assert not (path / "a").exists()
        if found:
            sentences.add((found.text, found.cure))
    assert isinstance(found, Snapshot)
    assert verify(found, silent).intact
    assert sentences == {
        (f"Cannot make repository {path}: the disk is full", CURE),
        (f"Cannot write to {path}: the disk is full", CURE),
        (f"Cannot publish {path}/a: the disk is full", CURE),
    }


def fill_up(path: Path) -> None:
    space = os.statvfs(path.parent)
    path.write_bytes(bytes(space.f_bfree * space.f_frsize))
    assert os.statvfs(path.parent).f_bfree == 0


def publish_with_room(repository: Repository, pages: int) -> str | None:
    """Publish a snapshot on a disk that has room for a few pages; the error's sentence."""
    filler = repository.path.with_name("filler")
    with repository.prepare("a") as draft:
        fill(draft, FILES)
        digests = draft.digest(silent)
        fill_up(filler)
        os.truncate(filler, filler.stat().st_size - pages * PAGE)
        try:
            draft.publish(manifest("a", digests))
        except GpusnapError as error:
            return error.text
        finally:
            filler.unlink()
    return None


def test_no_room_for_the_manifest(mounted: Callable[[str], Path]) -> None:
    repository = Repository.create(mounted("size=512k") / "repo")
    for pages in range(10):
        text = publish_with_room(repository, pages)
        if text is None:
            break
        assert text == f"Cannot publish {repository.path}/a: the disk is full"
        assert (repository.snapshots(), repository.damaged()) == ((), ())
        assert hidden(repository.path) == []
    assert pages >= 2, "refused for the manifest and for its digest"
    assert verify(repository.find("a"), silent).intact


def test_no_room_for_a_log(mounted: Callable[[str], Path]) -> None:
    repository = Repository.create(mounted("size=512k") / "repo")
    with repository.prepare("a") as draft:
        (draft.work / "dump.log").write_bytes(bytes(3 * PAGE))
        fill_up(repository.path.parent / "filler")
        with pytest.raises(GpusnapError, match=r"Cannot keep the log in .*: the disk is full"):
            draft.keep_log(draft.work / "dump.log")
        kept = draft.keep_failure_log()
    assert kept == repository.path / "logs/a-dump.log"
    assert kept.stat().st_size == 3 * PAGE


def test_remove_on_a_full_disk(mounted: Callable[[str], Path]) -> None:
    repository = Repository.create(mounted("size=512k") / "repo")
    snapshot = take(repository, "a", {"criu/pages-1.img": bytes(10 * PAGE)})
    fill_up(repository.path.parent / "filler")
    assert repository.remove(snapshot) >= 10 * PAGE
    assert repository.snapshots() == ()


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Limit the size of files; not longer than needed, pytest's own output may be a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [10, 100])
def test_limit_for_files(repository: Repository, size: int) -> None:
    with repository.prepare("a") as draft:
        fill(draft, FILES)
        digests = draft.digest(silent)
        with pytest.raises(GpusnapError) as caught, limited(size):
            draft.publish(manifest("a", digests))
        assert "a: the limit for the size of a file" in caught.value.text
        assert caught.value.cure == "Raise it: ulimit -f"
    assert repository.snapshots() == ()


def test_limit_for_the_configuration(tmp_path: Path) -> None:
    limit = limited(10)
    with pytest.raises(GpusnapError, match=r"Cannot make repository .*: the limit for the"), limit:
        Repository.create(tmp_path / "repo")
    with limited(1000):
        assert Repository.create(tmp_path / "repo").snapshots() == ()
