"""How memory goes to the disk: through the page cache or past it, by what a trial says."""

import errno
import fcntl
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpusnap.datapath import Compression, Disk, Filler, Saver, Saving, buffers, disk, pack, try_disk
from gpusnap.datapath.buffers import Buffer
from gpusnap.datapath.files import write_all
from tests.datapath.program import KINDS, PAGE
from tests.datapath.targets import Process, check, silent

LARGE = 4 << 30
DIRECT = Disk(cost=1e-9, direct=True)

Trials = Callable[..., None]
Begun = defaultdict[str, list[tuple[int, int]]]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    """Have trials take so long, past the page cache and through it."""

    def be(
        direct: tuple[float, float] | None, cached: tuple[float, float] | None, sync: float = 0.01
    ) -> None:
        def trial(_folder: Path, length: int, flags: int = 0) -> tuple[float, float] | None:
            if length == 8 << 20:
                return 0.0, sync
            return direct if flags & os.O_DIRECT else cached

        monkeypatch.setattr(disk, "_trial", trial)

    return be


@pytest.mark.parametrize(
    ("direct", "cached", "chosen"),
    [
        ((0.3, 0.0), (0.1, 0.3), True),
        ((0.3, 0.2), (0.1, 0.3), False),
        (None, (0.1, 0.3), False),  # a file system that refuses it
        ((0.3, 0.0), None, False),
    ],
)
def test_the_faster_way(
    trials: Trials,
    tmp_path: Path,
    direct: tuple[float, float] | None,
    cached: tuple[float, float] | None,
    chosen: bool,
) -> None:
    trials(direct, cached)
    found = try_disk(tmp_path, LARGE)
    assert found.direct is chosen
    assert found.cost == pytest.approx(0.01 / (8 << 20))


def test_few_bytes_are_not_worth_the_trials(trials: Trials, tmp_path: Path) -> None:
    trials((0.1, 0.0), (0.1, 0.3))
    assert not try_disk(tmp_path, LARGE - 1).direct


def test_memory_is_no_disk(trials: Trials, tmp_path: Path) -> None:
    trials((0.1, 0.0), (0.1, 0.3), sync=1e-6)
    assert not try_disk(tmp_path, LARGE).direct


def test_the_disk_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "_LONG_SAMPLE", 16 << 20)
    assert try_disk(tmp_path, LARGE).cost > 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_takes_large_blocks_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def pwritev(descriptor: int, parts: list[memoryview], position: int) -> int:
        direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        large = position % (4 * PAGE) == 0 and all(len(part) % (4 * PAGE) == 0 for part in parts)
        if direct and not large:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return sum(map(len, parts))

    monkeypatch.setattr("os.pwritev", pwritev)
    monkeypatch.setattr("os.pwrite", lambda file, data, at: pwritev(file, [data], at))
    assert disk._trial(tmp_path, 16 << 20, os.O_DIRECT) is None
    assert disk._trial(tmp_path, 16 << 20) is not None


def test_nothing_is_left_of_a_trial_that_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    def fdatasync(_descriptor: int) -> None:
        seen.append(list(tmp_path.iterdir()))

    monkeypatch.setattr("gpusnap.datapath.disk.os.fdatasync", fdatasync)
    try_disk(tmp_path, 0)
    assert seen == [[]]  # in memory, as it seems: once tells that


def test_where_nothing_can_be_tried_it_costs_nothing(tmp_path: Path) -> None:
    assert try_disk(tmp_path / "absent", LARGE) == Disk()


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    with Process(*KINDS) as process:
        yield process


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """For each write into a pack whether it went past the page cache."""
    path = tmp_path / "trial"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        pytest.skip("This file system knows no O_DIRECT")
    seen: list[bool] = []

    def write(descriptor: int, *arguments: Any) -> int:
        seen.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        return write_all(descriptor, *arguments)

    monkeypatch.setattr(pack, "write_all", write)
    return seen


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("incremental", [False, True])
def test_all_comes_back_that_went_past_the_page_cache(
    process: Process,
    tmp_path: Path,
    writes: list[bool],
    compression: Compression,
    incremental: bool,
) -> None:
    before = process.content()
    saving = Saving(compression=compression, workers=2, incremental=incremental)
    saver = Saver(tmp_path / "regions", saving, disk=DIRECT, runs_on=False)
    saver.copy(process.spans(), silent)
    saver.finish(silent)
    packs = len(list(tmp_path.glob("regions/*.pack")))
    # All but the footers.
    assert (writes.count(False), len(writes) > 2 * packs) == (packs, True)
    check(tmp_path / "regions")
    process.lose()
    Filler(tmp_path / "regions").fill(silent, verify=True)
    assert process.content() == before


def test_the_page_cache_takes_what_a_target_waits_for(
    process: Process, tmp_path: Path, writes: list[bool]
) -> None:
    # One buffer: all but the last one has to be written before the next can be copied.
    saving = Saving(compression=Compression.NONE, workers=1, budget=1 << 20)
    saver = Saver(tmp_path / "regions", saving, disk=DIRECT)
    saver.copy(process.spans(), silent)
    saver.finish(silent)
    assert writes[0] is False
    assert writes.count(True) <= 1
    check(tmp_path / "regions")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    """Where in each file, and how long, is what the disk was asked to work on."""
    begun = Begun(list)

    def advise(descriptor: int, position: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        begun[os.readlink(f"/proc/self/fd/{descriptor}")].append((position, length))
        os.posix_fadvise(descriptor, position, length, advice)

    monkeypatch.setattr(pack, "os", SimpleNamespace(**{**vars(os), "posix_fadvise": advise}))
    return begun


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_the_disk_works_from_the_start(
    process: Process, tmp_path: Path, begun: Begun, compression: Compression
) -> None:
    saving = Saving(compression=compression, workers=2)
    saver = Saver(tmp_path / "regions", saving, disk=Disk(cost=1e-9), runs_on=False)
    saver.copy(process.spans(), silent)
    saver.finish(silent)
    packs = list(tmp_path.glob("regions/*.pack"))
    assert begun.keys() == {str(path) for path in packs}
    for path in packs:
        positions, lengths = zip(*begun[str(path)], strict=True)
        assert [*positions, path.stat().st_size] == [*accumulate(lengths, initial=0)]
    check(tmp_path / "regions")


def test_nothing_holds_up_what_a_target_waits_for(
    process: Process, tmp_path: Path, begun: Begun
) -> None:
    saving = Saving(compression=Compression.NONE, workers=1, budget=1 << 20)
    saver = Saver(tmp_path / "regions", saving, disk=Disk(cost=1e-9))
    saver.copy(process.spans(), silent)
    while saver._backlog.written < saver._backlog.copied:
        time.sleep(0.01)
    assert begun == {}
    saver.finish(silent)
    assert begun != {}
    check(tmp_path / "regions")


def test_in_memory_there_is_no_disk_to_work(process: Process, tmp_path: Path, begun: Begun) -> None:
    saver = Saver(tmp_path / "regions", Saving(workers=2), disk=Disk(), runs_on=False)
    saver.copy(process.spans(), silent)
    saver.finish(silent)
    assert begun == {}


@pytest.mark.parametrize("workers", [1, 3])
def test_where_the_target_ends_no_copy_waits(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    made: list[int] = []

    class Counted(Buffer):
        def __init__(self, size: int) -> None:
            made.append(size)
            super().__init__(size)

    monkeypatch.setattr(buffers, "Buffer", Counted)
    saving = Saving(compression=Compression.ZSTD, workers=workers)
    saver = Saver(tmp_path / "regions", saving, disk=Disk(), runs_on=False)
    saver.copy(process.spans(), silent)
    saver.finish(silent)
    assert 1 <= len(made) <= workers


def test_a_write_that_does_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gpusnap.datapath.files.os.pwritev", lambda *_: 0)
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="No space left"):
        write_all(file.fileno(), [b"a"], 0)
    assert write_all(-1, [b""], 0) == 0


def test_a_write_that_ends_early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lengths = []

    def pwritev(descriptor: int, parts: list[memoryview], position: int) -> int:
        lengths.append([len(part) for part in parts])
        return os.pwrite(descriptor, b"".join(parts)[:PAGE], position)

    monkeypatch.setattr("gpusnap.datapath.files.os.pwritev", pwritev)
    parts = [bytes([number]) * length * PAGE for number, length in enumerate((1, 2, 0, 1))]
    with (tmp_path / "file").open("wb") as file:
        assert write_all(file.fileno(), parts, PAGE) == 4 * PAGE
    assert (tmp_path / "file").read_bytes() == bytes(PAGE) + b"".join(parts)
    pages = [[length // PAGE for length in each] for each in lengths]
    assert pages == [[1, 2, 0, 1], [2, 1], [1, 1], [1]]


def test_a_disk_that_others_use_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials = iter([(0.0, 0.2), (0.0, 0.01)])
    monkeypatch.setattr(disk, "_trial", lambda _folder, _length: next(trials))
    assert try_disk(tmp_path, 0).cost == pytest.approx(0.01 / (8 << 20))
