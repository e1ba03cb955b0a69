"""Room for packs that is found before anything is written."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusnap.datapath import Filler, Reserve, Saver, Saving, reserve
from gpusnap.datapath.disk import Disk
from tests.datapath.targets import Process, check, silent

MIB = 1 << 20
PLENTY = 1 << 40


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def rooms(folder: Path) -> list[int]:
    """Bytes that the kernel has found for each file."""
    return sorted(path.stat().st_blocks * 512 for path in folder.iterdir())


def grow(found: Reserve, until: Callable[[], bool]) -> None:
    with found.growing():
        deadline = time.monotonic() + 60
        while not until() and time.monotonic() < deadline:
            time.sleep(0.01)


def test_room_is_found_for_all_evenly(folder: Path) -> None:
    found = Reserve(folder, 3, 96 * MIB, PLENTY)
    grow(found, lambda: sum(rooms(folder)) >= 96 * MIB)
    assert rooms(folder) == [32 * MIB] * 3
    found.drop()
    assert rooms(folder) == []


def test_no_more_than_a_third_of_what_is_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "available", lambda: 96 * MIB)
    found = Reserve(folder, 2, 4096 * MIB, PLENTY)
    with found.growing():
        time.sleep(0.5)
    assert sum(rooms(folder)) == 32 * MIB
    found.drop()


def test_others_have_room_beside_it(mounted: Callable[[int], Path]) -> None:
    small = mounted(40 << 10)
    found = Reserve(small, 2, 39 * MIB, 40 * MIB)
    with found.growing():
        time.sleep(0.5)
    assert sum(rooms(small)) == 20 * MIB
    (small / "others").write_bytes(bytes(19 * MIB))
    found.drop()


def test_a_file_becomes_the_pack(folder: Path) -> None:
    found = Reserve(folder, 1, 16 * MIB, PLENTY)
    grow(found, lambda: sum(rooms(folder)) >= 16 * MIB)
    path = folder / "one.pack"
    descriptor = found.create(path)
    assert os.fstat(descriptor).st_blocks * 512 == 16 * MIB
    assert path.stat().st_ino == os.fstat(descriptor).st_ino
    assert path.stat().st_mode & 0o777 == 0o600
    os.close(descriptor)
    more = found.create(folder / "two.pack")  # there is no room left: it is made as any file
    assert os.fstat(more).st_blocks == 0
    os.close(more)
    with pytest.raises(FileExistsError):
        found.create(path)


def test_what_was_emptied_meanwhile(folder: Path) -> None:
    (folder / "work").mkdir()
    found = Reserve(folder / "work", 2, 32 * MIB, PLENTY)
    grow(found, lambda: sum(rooms(folder / "work")) >= 32 * MIB)
    shutil.rmtree(folder / "work")
    descriptor = found.create(folder / "one.pack")
    assert os.fstat(descriptor).st_blocks == 0
    os.close(descriptor)
    found.drop()


def test_a_full_disk_is_nobodys_business_yet(mounted: Callable[[int], Path]) -> None:
    small = mounted(40 << 10)
    found = Reserve(small, 2, 64 * MIB, PLENTY)
    (small / "others").write_bytes(bytes(30 * MIB))
    with found.growing():
        time.sleep(0.5)
    assert sum(rooms(small)) <= 40 * MIB
    found.drop()
    (small / "more").write_bytes(bytes(8 * MIB))


def test_a_folder_that_is_gone(folder: Path) -> None:
    found = Reserve(folder / "nowhere", 2, 32 * MIB, PLENTY)
    with found.growing():
        pass
    found.drop()


@pytest.mark.parametrize("size", [1, 64])
def test_memory_comes_back_from_packs_made_of_it(folder: Path, size: int) -> None:
    """With too much room, and with too little of it."""
    work = folder / "work"
    work.mkdir()
    found = Reserve(work, 2, size * MIB, PLENTY)
    grow(found, lambda: sum(rooms(work)) >= size * MIB)
    made = {path.stat().st_ino for path in work.iterdir()}
    with Process("floats", "striped", "scattered") as process:
        before = process.content()
        saver = Saver(
            folder / "regions", Saving(workers=2), disk=Disk(), runs_on=False, reserve=found
        )
        saver.copy(process.spans(), silent)
        saver.finish(silent)
        packs = sorted((folder / "regions").glob("*.pack"))
        assert {pack.stat().st_ino for pack in packs} <= made
        assert [pack.stat().st_size for pack in packs] == [pack.length for pack in saver.packs]
        found.drop()
        assert rooms(work) == []
        check(folder / "regions")
        process.lose()
        Filler(folder / "regions").fill(silent, verify=True)
        assert process.content() == before
