import ctypes
import mmap
import os
from pathlib import Path

import msgspec
import pytest

from gpusnap import restore
from gpusnap.datapath import Kind, Saver, Saving, Span
from gpusnap.errors import CriuError, IncompatibleError, IntegrityError, NotFoundError
from gpusnap.repository import Repository, Snapshot
from gpusnap.restore import run_restore
from gpusnap.restore_images import images_for_criu, open_regions
from gpusnap.types import DeviceMap, ProcessId
from tests.hostile.samples import tree
from tests.repository.samples import TARGET, manifest, silent, take


def snapshot_of(folder: Path, pid: int, in_images: int | None = None) -> Snapshot:
    """A snapshot with regions of this very process that says it is of process ``pid``."""
    (folder / "criu").mkdir()
    (folder / "criu/pstree.img").write_bytes(tree(in_images or pid))
    with mmap.mmap(-1, 1 << 16) as memory:
        memory[:] = os.urandom(1 << 16)
        view = ctypes.c_char.from_buffer(memory)
        span = Span(pid=os.getpid(), start=ctypes.addressof(view), length=1 << 16, kind=Kind.HOST)
        saver = Saver(folder / "regions", Saving())
        saver.copy([span], silent)
        saved = saver.finish(silent)
        del view
    process = msgspec.structs.replace(TARGET.root, id=ProcessId(pid, 1))
    target = msgspec.structs.replace(TARGET, processes=(process,))
    return Snapshot(folder, msgspec.structs.replace(manifest("one"), target=target, memory=saved))


def test_regions_of_the_target(tmp_path: Path) -> None:
    filler = open_regions(snapshot_of(tmp_path, os.getpid()))
    assert filler is not None
    assert filler.raw_bytes == 1 << 16


def test_regions_of_a_stranger_are_never_filled(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=f"process {os.getpid()}, a stranger"):
        open_regions(snapshot_of(tmp_path, os.getpid() + 1))


def test_regions_of_a_process_that_criu_will_not_make_are_never_filled(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=f"process {os.getpid()}, a stranger"):
        open_regions(snapshot_of(tmp_path, os.getpid(), in_images=os.getpid() + 1))


def test_no_regions(tmp_path: Path) -> None:
    assert open_regions(Snapshot(tmp_path, manifest("one"))) is None


def test_images_that_cannot_be_unpacked(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, os.getpid())
    names = images_for_criu(snapshot, open_regions(snapshot), tmp_path / "gone", {})
    with pytest.raises(NotFoundError, match=r"Cannot write to .*gone: it does not exist"), names:
        pytest.fail("CRIU was to read nothing")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "repo")


@pytest.fixture
def unfit(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """A snapshot that does not fit this machine."""

    def compare(*_: object, **_more: object) -> None:
        raise IncompatibleError("It does not fit")

    monkeypatch.setattr(restore, "_require_fit", compare)
    return take(repository, "one")


def test_what_does_not_fit(unfit: Snapshot) -> None:
    with pytest.raises(IncompatibleError, match="It does not fit"):
        run_restore(unfit.path)


def test_damage_is_told_before_what_does_not_fit(unfit: Snapshot) -> None:
    (unfit.path / "criu/core-7.img").write_bytes(b"other")
    with pytest.raises(IntegrityError, match=r"core-7\.img"):
        run_restore(unfit.path)


def test_a_missing_criu_is_told_before_all_else(
    unfit: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unfit.path / "criu/core-7.img").write_bytes(b"other")
    monkeypatch.setenv("GPUSNAP_CRIU", "/nowhere")
    with pytest.raises(CriuError, match="The CRIU that GPUSNAP_CRIU names cannot be used"):
        run_restore(unfit.path)


def test_images_are_not_looked_into_before_they_are_known_to_be_whole(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object, **_more: object) -> None:
        pytest.fail("it looked into damaged images")

    monkeypatch.setattr(restore, "compare_names", look)
    monkeypatch.setattr(restore, "_require_fit", lambda *_: ((), DeviceMap()))
    snapshot = take(repository, "one")
    (snapshot.path / "criu/core-7.img").write_bytes(b"other")
    with pytest.raises(IntegrityError, match=r"core-7\.img"):
        run_restore(snapshot.path)
