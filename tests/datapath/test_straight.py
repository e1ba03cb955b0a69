"""What is to be stored as it is goes into its pack right after it was copied."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.datapath import Compression, Filler, Saver, Saving, pack, source, worker
from gpusnap.datapath.disk import Disk
from gpusnap.datapath.images import MixedSource
from gpusnap.datapath.pace import Pace
from gpusnap.datapath.records import CHUNK
from gpusnap.datapath.source import Data, Piece, Runs, Windows, copy_pieces, cut, send_runs
from gpusnap.errors import GpusnapError
from gpusnap.native import Outlet, Sent, Stored, copy_straight
from tests.datapath.memory import Memory
from tests.datapath.targets import Process, check, silent

TMPFS = Disk()
PAGE = 4096
MEMORY = ("floats", "striped", "small", "text", "page", "scattered", "halves")


class Straight(list[int]):
    """Bytes that went into packs past the buffer, call by call."""

    def seen(self, pid: int, base: int, runs: Runs, buffer: memoryview, outlet: Outlet) -> Sent:
        sent = copy_straight(pid, base, runs, buffer, outlet)
        self.append(sum(each.length for each in sent.stored))
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


@pytest.mark.parametrize("kind", ["striped", "scattered", "small", "page"])
def test_no_memory_that_can_be_read_needs_a_buffer(
    straight: Straight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """However many pages of zeros and holes it has: each of them would cost the interpreter."""
    pieces = []

    def seen(*arguments: Any) -> list[Data]:
        pieces.append(sum(piece.length for piece in arguments[1]))
        return copy_pieces(*arguments)

    monkeypatch.setattr(worker, "copy_pieces", seen)
    with Process("floats", kind, kind) as process:
        before = process.content()
        save(process, tmp_path / "regions", ONE)
        process.lose()
        Filler(tmp_path / "regions").fill(silent, verify=True)
        assert process.content() == before
    assert pieces == [CHUNK]
    assert len(straight) >= len(process.spans())


def test_what_the_kernel_refuses_goes_another_way(straight: Straight, tmp_path: Path) -> None:
    with Process("floats", "none", "floats") as process:
        before = process.content()
        save(process, tmp_path / "regions", ONE)
        process.lose()
        Filler(tmp_path / "regions").fill(silent, verify=True)
        assert process.content() == before
    assert 0 in straight


@given(
    pages=st.lists(st.booleans(), min_size=1, max_size=600),
    ends=st.sets(st.integers(1, 599), max_size=5),
)
def test_the_same_comes_of_it_as_by_a_buffer(pages: list[bool], ends: set[int]) -> None:
    """Pages with something and pages of zeros, looked at in runs that end anywhere."""
    memory = Memory(b"".join(bytes([filled]) * PAGE for filled in pages))
    bounds = [0, *sorted(end for end in ends if end < len(pages)), len(pages)]
    runs = [Piece(0, a * PAGE, (b - a) * PAGE) for a, b in pairwise(bounds)]
    windows = Windows((memory.span,), MixedSource(()), 16 * CHUNK)
    with TemporaryFile(buffering=0) as file:
        outlet = Outlet(file.fileno(), 0)
        length, written = send_runs(windows, runs, memoryview(bytearray(CHUNK)), outlet)
        content = file.read()
    assert length == len(pages) * PAGE
    pieces = [piece for run in runs for piece in cut(run.span, run.offset, run.length, CHUNK)]
    buffer = memoryview(bytearray(length))
    data = copy_pieces(windows, pieces, buffer)
    assert written.stored == [Stored(each.offset, each.length, each.crc) for each in data]
    assert content == b"".join(buffer[each.at : each.at + each.length] for each in data)
