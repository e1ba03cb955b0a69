import os
from pathlib import Path

import pytest

from gpusnap.errors import IntegrityError, NotFoundError, UsageError
from gpusnap.repository import Repository, locate, planned_path, resolve, resolve_new
from tests.repository.samples import take


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUSNAP_REPO", str(tmp_path / "default"))


def test_a_snapshot_by_each_of_its_names(repository: Repository, tmp_path: Path) -> None:
    snapshot = take(repository, "epoch_10.ckpt")
    for spec in ("repo/epoch_10.ckpt", "./repo/epoch_10.ckpt/", str(snapshot.path)):
        assert resolve(spec) == snapshot
        assert resolve(spec, tmp_path / "elsewhere") == snapshot
    assert resolve(Path("repo/epoch_10.ckpt")) == snapshot
    for name in ("epoch_10.ckpt", "epoch", "latest"):
        assert resolve(name, repository.path) == snapshot
        assert resolve(name, "repo") == snapshot


def test_default_repository() -> None:
    with pytest.raises(NotFoundError, match=r"There is no repository .*/default"):
        resolve("a")
    with resolve_new("a") as draft:
        assert draft.destination == Path("default/a").absolute()
    with pytest.raises(NotFoundError, match=r"There is no snapshot 'a' in .*/default"):
        resolve("a")


def test_bare_name_in_the_current_folder(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = take(repository, "a")
    default = take(Repository.create(Path("default").absolute()), "a")
    monkeypatch.chdir(repository.path)
    assert resolve("a") == here
    assert resolve("a", default.path.parent) == default
    monkeypatch.chdir(here.path)
    assert resolve(".") == here


@pytest.mark.parametrize("spec", ["nowhere/a", "repo/b", "repo/gpusnap.json", "repo/a/criu", "/"])
def test_a_path_without_a_snapshot(repository: Repository, spec: str) -> None:
    take(repository, "a")
    with pytest.raises(NotFoundError, match="There is no snapshot at "):
        resolve(spec)


def test_damaged_ones_are_located(repository: Repository) -> None:
    path = take(repository, "a").path
    (path / "manifest.json").write_bytes(b"{}")
    with pytest.raises(IntegrityError):
        resolve("repo/a")
    assert locate("repo/a") == locate("a", repository.path) == path


@pytest.mark.parametrize(
    ("spec", "repo", "path"),
    [
        ("a", None, "default/a"),
        ("a", "other", "other/a"),
        ("x/y/a", None, "x/y/a"),
        ("x/a/", "other", "x/a"),
        ("./a", "other", "a"),
        (Path("a"), "other", "a"),
    ],
)
def test_where_a_new_one_goes(spec: str | Path, repo: str | None, path: str) -> None:
    assert planned_path(spec, repo) == Path(path).absolute()
    assert os.listdir() == [], "a plan changes nothing"
    with resolve_new(spec, repo) as draft:
        assert draft.destination == Path(path).absolute()
        assert draft.path.is_dir()


def test_generated_name() -> None:
    assert planned_path(None, "r", process_name="train").name.startswith("train-2")
    with resolve_new(None, "r", process_name="train") as draft:
        assert draft.destination.parent == Path("r").absolute()
        assert draft.name.startswith("train-2")


@pytest.mark.parametrize("spec", ["", "/", "..", "x/..", "../..", "x/.", ".", "x/latest", "x/.a"])
def test_refused_before_anything_is_made(spec: str) -> None:
    for begin in (planned_path, resolve_new):
        with pytest.raises(UsageError, match="The snapshot name"):
            begin(spec)
    assert os.listdir() == []


def test_plan_of_what_cannot_be(repository: Repository) -> None:
    take(repository, "a")
    with pytest.raises(UsageError, match="Snapshot a exists in "):
        planned_path("repo/a")
    with pytest.raises(UsageError, match="is a file, not a repository"):
        planned_path("repo/gpusnap.json/a")
