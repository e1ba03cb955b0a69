"""A snapshot folder that others could have written, or that is not what it seems."""

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpusnap
from gpusnap.datapath import Filler
from gpusnap.datapath.records import INDEX_LIMIT
from gpusnap.errors import ERROR_OF_CODE, IntegrityError, PrivilegeError, refuse
from gpusnap.repository import Repository, Snapshot, require_intact
from gpusnap.repository.manifest import MANIFEST_LIMIT
from gpusnap.restore import RestoreOptions, plan_restore
from gpusnap.trust import check_owner
from tests.hostile import samples
from tests.repository.samples import NOBODY, silent, take


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return take(Repository.create(tmp_path / "repository"), "one")


def faults(snapshot: Snapshot) -> list[str]:
    return [finding.text for finding in check_owner(snapshot.path)]


def test_one_of_our_own(snapshot: Snapshot) -> None:
    assert faults(snapshot) == []


@pytest.mark.parametrize("part", [".", "criu", "criu/pages-1.img", "manifest.json"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write(snapshot: Snapshot, part: str, mode: int) -> None:
    path = snapshot.path / part
    path.chmod(path.stat().st_mode | mode)
    (text,) = faults(snapshot)
    assert text.startswith(f"{path} may be written by others")


@pytest.mark.parametrize("part", [".", "criu", "criu/pages-1.img", "manifest.json"])
def test_what_belongs_to_others(root: None, snapshot: Snapshot, part: str) -> None:
    os.chown(snapshot.path / part, NOBODY, NOBODY)
    (text,) = faults(snapshot)
    assert f"{snapshot.path / part} belongs to user nobody" in text


def test_a_folder_in_which_others_may_put_another_in_its_place(snapshot: Snapshot) -> None:
    snapshot.path.parent.chmod(0o777)
    (text,) = faults(snapshot)
    assert text.startswith(f"{snapshot.path.parent} may be written by others")
    snapshot.path.parent.chmod(0o1777)
    assert faults(snapshot) == [], "as in /tmp, where nobody can rename what is another's"


def test_a_link_to_it_is_as_good(snapshot: Snapshot, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(snapshot.path)
    plan = plan_restore(link, options=RestoreOptions(new_pids=True))
    assert plan.snapshot == str(snapshot.path), "whoever may move the link comes too late"
    assert "snapshot-owner" not in {each.code for each in plan.findings}


def test_a_folder_of_another_s(root: None, snapshot: Snapshot) -> None:
    os.chown(snapshot.path.parent, NOBODY, NOBODY)
    snapshot.path.parent.chmod(0o1777)
    assert "belongs to user nobody" in faults(snapshot)[0]


def test_it_is_refused_unless_forced(root: None, snapshot: Snapshot) -> None:
    (snapshot.path / "manifest.json").chmod(0o666)
    with pytest.raises(PrivilegeError, match=r"runs what it holds \[snapshot-owner\]") as caught:
        gpusnap.restore_checkpoint(snapshot.path, new_pids=True)
    assert caught.value.cure
    plan = plan_restore(
        snapshot.path, options=RestoreOptions(new_pids=True, force=frozenset({"snapshot-owner"}))
    )
    (finding,) = [each for each in plan.findings if each.code == "snapshot-owner"]
    assert finding.severity == "warning"
    assert ERROR_OF_CODE["snapshot-owner"] is PrivilegeError
    refuse((finding,))


@pytest.mark.parametrize("part", ["criu/pages-1.img", "manifest.json", "logs/dump.log", "criu"])
def test_no_link_is_followed(snapshot: Snapshot, tmp_path: Path, part: str) -> None:
    path, elsewhere = snapshot.path / part, tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(IntegrityError):
        require_intact(snapshot, silent)


def test_no_pipe_is_waited_for(snapshot: Snapshot) -> None:
    path = snapshot.path / "criu/pages-1.img"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(IntegrityError, match="is a pipe"):
        require_intact(snapshot, silent)


def test_nothing_may_be_added(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(snapshot.images)  # a socket's name has room for no long path
    with socket.socket(socket.AF_UNIX) as added:
        added.bind("x.img")
    with pytest.raises(IntegrityError, match="was not part of the snapshot"):
        require_intact(snapshot, silent)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """No room for what only hostile numbers ask for."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_manifest_of_a_tebibyte_is_not_read(snapshot: Snapshot, little_memory: None) -> None:
    os.truncate(snapshot.path / "manifest.json", max(1 << 40, MANIFEST_LIMIT + 1))
    with pytest.raises(IntegrityError, match="is damaged: longer than"):
        Repository.open(snapshot.path.parent).find("one")


def test_an_index_of_a_tebibyte_is_not_read(tmp_path: Path, little_memory: None) -> None:
    for name, data in samples.saved().items():
        (tmp_path / name).write_bytes(data)
    Filler(tmp_path)
    os.truncate(tmp_path / "index", max(1 << 40, INDEX_LIMIT + 1))
    with pytest.raises(IntegrityError, match="cannot be read: longer than"):
        Filler(tmp_path)


def test_a_pack_of_a_tebibyte_is_no_pack_of_the_index(tmp_path: Path, little_memory: None) -> None:
    for name, data in samples.saved().items():
        (tmp_path / name).write_bytes(data)
    os.truncate(tmp_path / "000.pack", 1 << 40)
    with pytest.raises(IntegrityError, match="bytes instead of"):
        Filler(tmp_path)
