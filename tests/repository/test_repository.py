import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusnap.errors import (
    BusyError,
    GpusnapError,
    IncompatibleError,
    IntegrityError,
    NotFoundError,
    PrivilegeError,
    UsageError,
)
from gpusnap.repository import (
    Repository,
    Snapshot,
    locate,
    open_snapshot,
    resolve_new,
    verify,
)
from gpusnap.repository.layout import WITH_PARTS
from tests.repository.samples import alter, fill, hidden, powerless, silent, take


def names(repository: Repository) -> list[str]:
    return [snapshot.name for snapshot in repository.snapshots()]


def test_made_once(tmp_path: Path) -> None:
    made = Repository.create(tmp_path / "some/where/repo")
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert (made.path / "gpusnap.json").stat().st_mode & 0o777 == 0o600
    assert Repository.create(made.path) == made == Repository.open(made.path)
    assert hidden(made.path) == []


@pytest.mark.parametrize("attempt", range(20))
def test_made_at_once_by_many(tmp_path: Path, attempt: int) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(Repository.create(tmp_path / "repo").id))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_folder_with_other_things_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir(0o755)
    tmp_path.chmod(0o755)
    repository = Repository.create(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert (repository.snapshots(), repository.damaged()) == ((), ())
    with pytest.raises(NotFoundError):
        repository.find("notes")


def no_folder(path: Path) -> None:
    """Leave it absent."""


def is_file(path: Path) -> None:
    path.write_bytes(b"")


def not_a_repository(path: Path) -> None:
    path.mkdir()


def configured(data: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        (path / "gpusnap.json").write_bytes(data)

    return make


def config_is_link(path: Path) -> None:
    path.mkdir()
    (path / "gpusnap.json").symlink_to("/dev/zero")


def config_is_folder(path: Path) -> None:
    (path / "gpusnap.json").mkdir(parents=True)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (no_folder, NotFoundError, "There is no repository .*/repo"),
        (is_file, UsageError, "repo is a file, not a repository"),
        (not_a_repository, NotFoundError, "repo is no gpusnap repository"),
        (configured(b""), IntegrityError, "gpusnap.json is damaged: "),
        (configured(b'{"format_version":1,"id":"x"}'), IntegrityError, "gpusnap.json is damaged: "),
        (configured(b" " * 100_000), IntegrityError, "gpusnap.json is damaged: longer than 65536"),
        (configured(b'{"format_version":9}'), IncompatibleError, "version 9, newer than 1"),
        (config_is_link, IntegrityError, "gpusnap.json is damaged: a symbolic link stands where"),
        (config_is_folder, IntegrityError, "gpusnap.json is damaged: not a regular file"),
    ],
)
def test_what_is_no_repository(
    tmp_path: Path, make: Callable[[Path], None], error: type[GpusnapError], words: str
) -> None:
    make(tmp_path / "repo")
    with pytest.raises(error, match=words):
        Repository.open(tmp_path / "repo")


@pytest.mark.parametrize("path", ["file", "file/repo", "file/a/repo"])
def test_not_made_through_a_file(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="is a file"):
        Repository.create(tmp_path / path)


def test_not_made_where_no_file_can_be() -> None:
    for path in ("/proc", "/proc/none/repo"):
        sentence = f"Cannot make repository {path}: no files can be made there"
        with pytest.raises(UsageError, match=sentence):
            Repository.create(path)


def test_paths_as_callers_give_them(repository: Repository) -> None:
    assert Repository.open(str(repository.path)) == repository
    snapshot = take(repository, "a")
    assert open_snapshot(str(snapshot.path)).manifest == snapshot.manifest
    assert verify(str(snapshot.path), silent).intact


@pytest.mark.parametrize("path", ["a\0b", b"a", None, 3])
def test_what_is_no_path(repository: Repository, path: Any) -> None:
    for use in (Repository.open, Repository.create, open_snapshot, locate, resolve_new):
        if path is None and use is resolve_new:
            continue  # it has a name made
        with pytest.raises(UsageError, match=r"is not a path") as caught:
            use(path)
        assert caught.value.cure
    if path is not None:
        with pytest.raises(UsageError, match="is not a path"):
            locate("a", path)
        with pytest.raises(UsageError, match="snapshot name"):
            repository.prepare(path)


def locate_a(path: Path) -> None:
    open_snapshot(path / "a")


def verify_a(path: Path) -> None:
    verify(path / "a", silent)


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "repo").symlink_to("repo")
    with pytest.raises(GpusnapError, match=r"symbolic link|circle"):
        Repository.open(tmp_path / "repo")


@pytest.mark.parametrize("use", [Repository.open, Repository.create, locate_a, verify_a])
def test_unreadable(repository: Repository, use: Callable[[Path], object]) -> None:
    take(repository, "a")
    with powerless(repository.path), pytest.raises(PrivilegeError) as caught:
        use(repository.path)
    assert re.fullmatch(r"Cannot (open|read) .*: permission denied", caught.value.text)
    assert caught.value.cure


def test_read_only(mounted: Callable[[str], Path]) -> None:
    repository = Repository.create(mounted("size=1m") / "repo")
    snapshot = take(repository, "a")
    subprocess.run(["mount", "-o", "remount,ro", str(repository.path.parent)], check=True)
    opened = Repository.create(repository.path)
    assert opened.snapshots() == (snapshot,)
    with opened.find("a").hold():
        pass
    for use in (lambda: opened.prepare("b"), lambda: opened.remove(snapshot)):
        with pytest.raises(GpusnapError, match=r"repo.*: the file system is read-only") as caught:
            use()
        assert caught.value.cure
    with pytest.raises(GpusnapError, match="repo2: the file system is read-only"):
        Repository.create(repository.path.with_name("repo2"))


def test_oldest_first_and_latest(repository: Repository) -> None:
    with pytest.raises(NotFoundError, match="holds no snapshot"):
        repository.find("latest")
    take(repository, "b", created="2026-01-01T00:00:00.500000Z")
    take(repository, "z", created="2026-01-01T00:00:00Z")
    take(repository, "c", created="2026-01-01T00:00:00.5+00:00")
    take(repository, "a", created="2025-12-31T23:59:59Z")
    assert names(repository) == ["a", "z", "b", "c"]
    assert repository.find("latest").name == "c"


def test_find(repository: Repository) -> None:
    for name in ("run", "run-1", "run-2", "train"):
        take(repository, name)
    (repository.path / "trash").mkdir()
    assert repository.find("run").name == "run"
    assert repository.find("t").name == "train"
    with pytest.raises(UsageError, match="'run-' is the beginning of 2 names") as caught:
        repository.find("run-")
    assert caught.value.cure == "Name one of them: run-1, run-2"
    with pytest.raises(NotFoundError, match="There is no snapshot 'x' in "):
        repository.find("x")


@pytest.mark.parametrize("name", ["", "..", "a/b", "/", ".draft-a", "a\0"])
def test_find_what_no_snapshot_can_be_named(repository: Repository, name: str) -> None:
    with pytest.raises(UsageError, match="The snapshot name"):
        repository.find(name)


def test_damaged_are_listed_apart(repository: Repository) -> None:
    for name in ("a", "b", "c", "d", "good"):
        take(repository, name)
    (repository.path / "a/manifest.json").unlink()
    (repository.path / "b/manifest.json.sha256").write_bytes(b"")
    alter(repository.find("c"), format_version=WITH_PARTS + 1)
    alter(repository.find("d"), name="..")
    assert names(repository) == ["good"]
    reasons = {damaged.name: damaged.reason for damaged in repository.damaged()}
    assert sorted(reasons) == ["a", "b", "c", "d"]
    assert reasons["a"].endswith("a/manifest.json is missing")
    assert reasons["b"].endswith("is not what manifest.json.sha256 says it was")
    assert "newer than" in reasons["c"]
    assert "starts with a dot" in reasons["d"]
    with pytest.raises(IntegrityError, match="is missing"):
        repository.find("a")
    with pytest.raises(IncompatibleError):
        repository.find("c")
    assert repository.locate("a") == repository.path / "a"
    assert sum(map(repository.remove, repository.damaged())) > 0
    assert repository.damaged() == ()


def test_renamed_snapshots_go_by_their_folder(repository: Repository) -> None:
    take(repository, "a").path.rename(repository.path / "b")
    assert names(repository) == ["b"]
    assert repository.find("b").manifest.name == "a"


def test_generated_names_are_unique(repository: Repository) -> None:
    with (
        repository.prepare(None, process_name="my program") as first,
        repository.prepare(None, process_name="my program") as second,
    ):
        assert first.name.startswith("my-program-2")
        assert first.name != second.name


def test_remove(repository: Repository) -> None:
    snapshot = take(repository, "a", {"criu/pages-1.img": bytes(1 << 20)})
    assert repository.remove(snapshot) >= 1 << 20
    assert os.listdir(repository.path) == ["gpusnap.json"]
    with pytest.raises(NotFoundError):
        repository.remove(snapshot)


def test_remove_only_what_is_in_it(repository: Repository, tmp_path: Path) -> None:
    take(repository, "a")
    other = take(Repository.create(tmp_path / "other"), "a")
    with pytest.raises(UsageError, match="is in another repository"):
        repository.remove(other)
    assert names(repository) == ["a"]


def test_what_is_in_use_is_not_removed(repository: Repository) -> None:
    snapshot = take(repository, "a")
    with snapshot.hold(), snapshot.hold():
        with pytest.raises(BusyError, match="Snapshot a is in use"):
            repository.remove(snapshot)
        assert names(repository) == ["a"]
    repository.remove(snapshot)
    with pytest.raises(NotFoundError), snapshot.hold():
        pass


def test_errors_while_holding_pass_through(repository: Repository) -> None:
    snapshot = take(repository, "a")
    with pytest.raises(BlockingIOError), snapshot.hold():
        raise BlockingIOError


HOLDER = """
import sys
from pathlib import Path
from gpusnap.repository import Repository
draft = Repository.open(Path(sys.argv[1])).prepare("held")
print("held", flush=True)
sys.stdin.read()
"""


def test_clean_leaves_what_the_living_hold(repository: Repository) -> None:
    command = [sys.executable, "-c", HOLDER, str(repository.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert repository.clean() == 0
        assert hidden(repository.path) == [".draft-held"]
        with pytest.raises(BusyError):
            repository.prepare("held")
        holder.kill()
    (repository.path / ".draft-held/snapshot/criu/pages-1.img").write_bytes(bytes(1 << 16))
    assert repository.clean() >= 1 << 16
    assert hidden(repository.path) == []


@pytest.mark.parametrize("name", [".draft-a", ".removed-a"])
@pytest.mark.parametrize("kind", ["file", "link to nothing", "link to a folder"])
def test_clean_does_not_fail_for_what_gpusnap_never_made(
    repository: Repository, tmp_path: Path, name: str, kind: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    if kind == "file":
        (repository.path / name).touch()
    else:
        (repository.path / name).symlink_to(elsewhere)
    if kind == "link to a folder":
        elsewhere.mkdir()
    (repository.path / ".draft-b/snapshot").mkdir(parents=True)
    repository.clean()
    assert hidden(repository.path) == [name]
    assert kind != "link to a folder" or os.listdir(elsewhere) == []
    if name == ".draft-a":
        for use in (repository.prepare, repository.discard_draft):
            with pytest.raises(GpusnapError, match=r"\.draft-a is not a folder") as caught:
                use("a")
            assert caught.value.cure == "Remove it"


def test_clean_goes_on_after_what_it_cannot_delete(repository: Repository) -> None:
    (repository.path / ".draft-a/lock").mkdir(parents=True)
    (repository.path / ".draft-b").mkdir()
    (repository.path / ".removed-c").mkdir()
    with pytest.raises(GpusnapError, match="Cannot clean "):
        repository.clean()
    assert hidden(repository.path) == [".draft-a"]


def test_one_dead_draft_is_discarded(repository: Repository) -> None:
    for name in ("a", "b"):
        (repository.path / f".draft-{name}").mkdir()
        (repository.path / f".draft-{name}/pages-1.img").write_bytes(bytes(1 << 16))
    assert repository.discard_draft("a") >= 1 << 16
    assert hidden(repository.path) == [".draft-b"]
    assert repository.discard_draft("a") == 0
    assert hidden(repository.path) == [".draft-b"]
    with repository.prepare("c"):
        assert repository.discard_draft("c") == 0
        assert ".draft-c" in hidden(repository.path)
    with pytest.raises(UsageError):
        repository.discard_draft("../b")


def test_contents_opens_each_once(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    take(repository, "a")
    (take(repository, "b").path / "manifest.json").unlink()
    opened = []

    def counting(path: Path) -> Snapshot:
        opened.append(path.name)
        return open_snapshot(path)

    monkeypatch.setattr("gpusnap.repository.repository.open_snapshot", counting)
    found = repository.contents()
    assert [each.name for each in found.snapshots] == ["a"]
    assert [each.name for each in found.damaged] == ["b"]
    assert sorted(opened) == ["a", "b"]


def test_a_dead_draft_is_taken_over_empty(repository: Repository) -> None:
    stale = repository.path / ".draft-a/snapshot/criu"
    stale.mkdir(parents=True)
    (stale / "pages-9.img").write_bytes(b"of another process")
    with repository.prepare("a") as draft:
        fill(draft, {})
        assert list(draft.images.iterdir()) == []


def test_clean_leaves_snapshots_and_other_things(repository: Repository) -> None:
    take(repository, "a")
    (repository.path / "notes").mkdir()
    (repository.path / ".git").mkdir()
    assert repository.clean() == 0
    assert sorted(os.listdir(repository.path)) == [".git", "a", "gpusnap.json", "notes"]


def test_free_bytes(mounted: Callable[[str], Path]) -> None:
    repository = Repository.create(mounted("size=1m") / "repo")
    free = repository.free_bytes()
    assert 900_000 < free < 1 << 20
    take(repository, "a", {"criu/pages-1.img": bytes(1 << 19)})
    assert repository.free_bytes() <= free - (1 << 19)
