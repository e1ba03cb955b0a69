import ctypes
import mmap
import os
from pathlib import Path

import msgspec
import pytest

from gpusnap.datapath import Kind, Saver, Saving, Span
from gpusnap.errors import IntegrityError, NotFoundError
from gpusnap.repository import Snapshot
from gpusnap.restore_images import images_for_criu, open_regions
from gpusnap.types import ProcessId
from tests.hostile.samples import tree
from tests.repository.samples import TARGET, manifest, silent


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
