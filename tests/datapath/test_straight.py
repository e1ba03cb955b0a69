"""What is to be stored as it is goes into its pack right after it was copied."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpusnap.datapath import Compression, Filler, Saver, Saving, pack, source
from gpusnap.datapath.disk import Disk
from gpusnap.datapath.pace import Pace
from gpusnap.datapath.records import CHUNK
from gpusnap.errors import GpusnapError
from gpusnap.native import Outlet, Part, Sent, copy_straight
from tests.datapath.targets import Process, check, silent

TMPFS = Disk()
MEMORY = ("floats", "striped", "small", "text", "page", "scattered", "halves")


class Straight(list[int]):
    """Bytes that went into packs past the buffer, call by call."""

    def seen(self, part: Part, first: int, buffer: memoryview, outlet: Outlet) -> Sent:
        sent = copy_straight(part, first, buffer, outlet)
        ends = (first + number * len(buffer) for number in range(len(sent.crcs)))
        self.append(max((min(end, part.length) for end in ends), default=0))
        return sent


@pytest.fixture
def straight(monkeypatch: pytest.MonkeyPatch) -> Straight:
    """Nothing is tried, so that all may go straight that is there after a pack's first chunk."""
    seen = Straight()
    monkeypatch.setattr(source, "copy_straight", seen.seen)
    monkeypatch.setattr(Pace, "try_is_due", lambda _pace: False)
    return seen


def save(
    process: Process, folder: Path, saving: Saving, *, runs_on: bool = False, disk: Disk = TMPFS
) -> None:
    saver = Saver(folder, saving, disk=disk, runs_on=runs_on)
    try:
        saver.copy(process.spans(), silent)
        saver.finish(silent)
    finally:
        saver.abort()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.AUTO])
@pytest.mark.parametrize("runs_on", [True, False])
def test_all_comes_back(
    straight: Straight,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    compression: Compression,
    workers: int,
    *,
    runs_on: bool,
) -> None:
    monkeypatch.setattr(Pace, "favours_writing", True)
    # With buffers of one chunk there are many of them
    saving = Saving(compression=compression, workers=workers, budget=workers * CHUNK)
    with Process(*MEMORY) as process:
        before = process.content()
        save(process, tmp_path / "regions", saving, runs_on=runs_on)
        process.lose()
        check(tmp_path / "regions", workers)
        Filler(tmp_path / "regions", workers=workers).fill(silent, verify=True)
        assert process.content() == before
    assert CHUNK in straight


def saved_by(
    straight: Straight, folder: Path, saving: Saving, *, runs_on: bool = False, disk: Disk = TMPFS
) -> int:
    with Process("floats", "floats") as process:
        save(process, folder, saving, runs_on=runs_on, disk=disk)
    return sum(straight)


ONE = Saving(compression=Compression.NONE, workers=1, budget=CHUNK)


def test_all_but_the_first_buffer(straight: Straight, tmp_path: Path) -> None:
    with Process("floats", "floats") as process:
        save(process, tmp_path / "regions", ONE)
        total = sum(span.length for span in process.spans())
    assert sum(straight) == total - CHUNK


def test_not_what_has_to_be_looked_at(straight: Straight, tmp_path: Path) -> None:
    for number, saving in enumerate(
        (
            Saving(compression=Compression.LZ4, workers=1, budget=CHUNK),
            Saving(compression=Compression.NONE, workers=1, budget=CHUNK, incremental=True),
        )
    ):
        assert saved_by(straight, tmp_path / str(number), saving) == 0


def test_not_where_a_copy_alone_releases_the_target_sooner(
    straight: Straight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Pace, "favours_writing", False)
    assert saved_by(straight, tmp_path / "regions", ONE, runs_on=True) == 0


def test_not_past_the_page_cache(
    straight: Straight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Not every file system can; it is not needed to see what is chosen
    monkeypatch.setattr(pack, "set_direct", lambda _descriptor, **_: None)
    disk = Disk(cost=1e-9, direct=True)
    assert saved_by(straight, tmp_path / "regions", ONE, disk=disk) == 0


def test_a_disk_that_is_full_in_the_middle(
    straight: Straight, mounted: Callable[[int], Path]
) -> None:
    folder = mounted(3 << 10) / "regions"
    with pytest.raises(GpusnapError) as caught:
        saved_by(straight, folder, ONE)
    assert caught.value.text == f"Cannot write {folder}/000.pack: the disk is full"
    assert CHUNK in straight


def test_memory_with_many_pages_of_zeros_is_read_once(straight: Straight, tmp_path: Path) -> None:
    """A chunk that cannot go straight is read twice; of a window no more than two are."""
    with Process("striped", "striped") as process:
        save(process, tmp_path / "regions", Saving(compression=Compression.NONE, workers=1))
    assert straight
    assert straight.count(0) <= 2 * len(process.spans())
