"""What happens where there is no room, at each place where room is needed."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusnap.errors import GpusnapError
from gpusnap.repository import Repository, verify
from tests.repository.samples import FILES, fill, hidden, manifest, silent, take

PAGE = os.sysconf("SC_PAGE_SIZE")


def test_no_room_for_names(mounted: Callable[[str], Path]) -> None:
    """With ever more files allowed: each step fails once, in a sentence, until all succeed."""
    sentences = set()
    for allowed in range(1, 100):
        path = mounted(f"size=1m,nr_inodes={allowed}") / "repo"
        try:
            snapshot = take(Repository.create(path), "a")
            break
        except GpusnapError as error:
            sentences.add(error.text)
            assert error.cure == "Free space on that file system, or choose another repository"
            assert not (path / "a").exists()
        except OSError as error:
            assert error.errno == errno.ENOSPC, "the test's own images"
    assert verify(snapshot, silent).intact
    assert sentences == {
        f"Cannot make repository {path}: the disk is full",
        f"Cannot write to {path}: the disk is full",
        f"Cannot publish {path}/a: the disk is full",
    }


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PAGE))
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_no_room_for_the_manifest(mounted: Callable[[str], Path]) -> None:
    filler = mounted("size=512k") / "filler"
    repository = Repository.create(filler.with_name("repo"))
    refused = 0
    while True:
        with repository.prepare("a") as draft:
            fill(draft, FILES)
            digests = draft.digest(silent)
            fill_up(filler)
            os.truncate(filler, filler.stat().st_size - refused * PAGE)
            try:
                draft.publish(manifest("a", digests))
                break
            except GpusnapError as error:
                refused += 1
                assert error.text == f"Cannot publish {repository.path}/a: the disk is full"
        filler.unlink()
        assert (repository.snapshots(), repository.damaged()) == ((), ())
        assert hidden(repository.path) == []
    assert refused >= 2, "once for the manifest and once for its digest"
    assert verify(repository.find("a"), silent).intact


def test_no_room_for_a_log(mounted: Callable[[str], Path]) -> None:
    repository = Repository.create(mounted("size=512k") / "repo")
    with repository.prepare("a") as draft:
        (draft.work / "dump.log").write_bytes(bytes(3 * PAGE))
        fill_up(repository.path.parent / "filler")
        with pytest.raises(GpusnapError, match="Cannot keep the log in .*: the disk is full"):
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


@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [10, 100])
def test_limit_for_files(repository: Repository, limited: Callable[[int], None], size: int) -> None:
    with repository.prepare("a") as draft:
        fill(draft, FILES)
        digests = draft.digest(silent)
        limited(size)
        with pytest.raises(GpusnapError, match="a: the limit for the size of a file") as caught:
            draft.publish(manifest("a", digests))
        assert caught.value.cure == "Raise it: ulimit -f"
    assert repository.snapshots() == ()


def test_limit_for_the_configuration(tmp_path: Path, limited: Callable[[int], None]) -> None:
    limited(10)
    with pytest.raises(GpusnapError, match="Cannot make repository .*: the limit for the size"):
        Repository.create(tmp_path / "repo")
    limited(1000)
    assert Repository.create(tmp_path / "repo").snapshots() == ()
