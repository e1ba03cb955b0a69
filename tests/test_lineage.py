"""Which snapshot an incremental one builds on, and that nobody removes it meanwhile."""

import os
from pathlib import Path

import pytest

from gpusnap.checks import check_space
from gpusnap.errors import BusyError, IntegrityError, NotFoundError, PrivilegeError, UsageError
from gpusnap.lineage import Inheritance, Search, inheritance
from gpusnap.plan import CheckpointOptions, choose_saving
from gpusnap.repository import Repository, Snapshot
from gpusnap.types import Severity
from tests.datapath.memory import MIB, Memory
from tests.repository.samples import TARGET, take, take_memory


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "repo")


@pytest.fixture
def snapshot(repository: Repository) -> Snapshot:
    return take_memory(repository, "one", Memory(os.urandom(MIB)))


def search(repository: Repository, parent: str | None = None) -> Search:
    return Search(parent=parent, repository=repository.path, folder=repository.path)


def test_nothing_is_inherited(repository: Repository) -> None:
    take(repository, "plain")
    for each in (None, search(repository)):
        with inheritance(TARGET, each) as inherited:
            assert inherited == Inheritance()


@pytest.mark.parametrize("name", [None, "one", "on"])
def test_a_parent_is_held(repository: Repository, snapshot: Snapshot, name: str | None) -> None:
    with inheritance(TARGET, search(repository, name)) as inherited:
        assert inherited.parent == snapshot
        assert inherited.memory is not None
        assert len(inherited.memory.known) == 1
        with pytest.raises(BusyError, match="is in use"):
            repository.remove(snapshot)
    repository.remove(snapshot)


def test_a_parent_that_is_damaged(repository: Repository, snapshot: Snapshot) -> None:
    os.truncate(snapshot.regions / "index", 10)
    with inheritance(TARGET, search(repository)) as inherited:
        assert (inherited.parent, inherited.memory) == (None, None)
        assert inherited.finding is not None
        assert inherited.finding.code == "parent-unusable"
        assert "Snapshot one cannot be a parent" in inherited.finding.text
    with pytest.raises(IntegrityError), inheritance(TARGET, search(repository, "one")):
        pass
    repository.remove(snapshot)


def test_a_parent_that_others_may_write(repository: Repository, snapshot: Snapshot) -> None:
    (snapshot.regions / "000.pack").chmod(0o666)
    words = r"Snapshot one cannot be a parent: .*/000\.pack may be written by others"
    with (
        pytest.raises(PrivilegeError, match=words) as caught,
        inheritance(TARGET, search(repository, "one")),
    ):
        pass
    assert caught.value.cure is not None
    with inheritance(TARGET, search(repository)) as inherited:
        assert (inherited.parent, inherited.memory) == (None, None)
        assert inherited.finding is not None
        assert inherited.finding.code == "parent-unusable"
        assert "[snapshot-owner]" in inherited.finding.text
    repository.remove(snapshot)


@pytest.mark.parametrize("parent", [False, True])
def test_little_room(parent: bool) -> None:
    """What a parent has already, nobody knows beforehand: it may well be enough."""
    assert list(check_space(5, 5, "here", parent=parent)) == []
    (finding,) = check_space(6, 5, "here", parent=parent)
    assert finding.code == "repository-space"
    assert finding.severity is (Severity.WARNING if parent else Severity.ERROR)
    assert ("less what its parent has" in finding.text) is parent


def test_a_parent_that_is_not_there(repository: Repository) -> None:
    with pytest.raises(NotFoundError), inheritance(TARGET, search(repository, "absent")):
        pass


def test_memory_that_criu_saves() -> None:
    saving = choose_saving(incremental=True)
    with pytest.raises(UsageError, match="cannot be saved incrementally"):
        CheckpointOptions(saving=saving, regions=False)
    assert CheckpointOptions(regions=False).search(Path(), None) is None
    assert CheckpointOptions(saving=saving).search(Path("a"), "b") == Search(
        parent=None, repository="b", folder=Path("a")
    )
