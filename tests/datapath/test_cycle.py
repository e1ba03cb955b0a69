"""Memory of real processes: saved, lost, filled again, the same to the last byte."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpusnap.datapath import Compression, Filler, Kind, Saved, Saver, Saving, Span, pack
from gpusnap.datapath.source import MOST_RUNS, Windows
from gpusnap.errors import UsageError
from gpusnap.types import SavedMemory
from tests.datapath.program import KINDS, PAGE
from tests.datapath.targets import Process, check, save, silent


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    with Process(*KINDS) as process:
        yield process


@pytest.mark.parametrize("budget", [None, 3 << 20, 1])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("compression", Compression)
def test_all_comes_back(
    process: Process, tmp_path: Path, compression: Compression, workers: int, budget: int | None
) -> None:
    before = process.content()
    saving = Saving(compression=compression, workers=workers, budget=budget)
    summary = save(process.spans(), tmp_path / "regions", saving)
    process.lose()
    assert process.content() != before
    filler = Filler(tmp_path / "regions", workers=workers)
    check(tmp_path / "regions", workers)
    filler.fill(silent, verify=True)
    assert process.content() == before
    assert filler.spans == process.spans()
    assert filler.raw_bytes == summary.raw - summary.zero
    assert sum(use.raw for use in summary.codecs) == filler.raw_bytes


def saved(kind: str, folder: Path, compression: Compression) -> SavedMemory:
    with Process(kind) as process:
        return save(process.spans(), folder, Saving(compression=compression, workers=1))


def test_zeros_and_holes_take_no_room(tmp_path: Path) -> None:
    assert saved("untouched", tmp_path / "a", Compression.NONE) == SavedMemory(
        raw=0, zero=0, stored=0
    )
    length = KINDS["zeros"][0]
    zeros = saved("zeros", tmp_path / "b", Compression.NONE)
    assert (zeros.zero, zeros.stored) == (length, 0)
    length = KINDS["scattered"][0]
    scattered = saved("scattered", tmp_path / "c", Compression.NONE)
    assert scattered.stored == -(-length // (37 * PAGE)) * PAGE
    assert scattered.raw == scattered.stored
    striped = saved("striped", tmp_path / "d", Compression.NONE)
    # Its first page, and one gap between each two of the runs that are left.
    assert striped.zero == MOST_RUNS * PAGE
    assert striped.stored == KINDS["striped"][0] - striped.zero


@pytest.mark.parametrize(
    ("kind", "compression", "codec", "most"),
    [
        ("small", Compression.ZSTD, "raw", 1.0),
        ("text", Compression.ZSTD, "planes2-zstd", 0.4),
        ("text", Compression.LZ4, "lz4", 0.6),
        ("halves", Compression.ZSTD, "planes2-zstd", 0.7),
        ("floats", Compression.ZSTD, "planes4-zstd", 0.9),
        ("floats", Compression.NONE, "raw", 1.0),
    ],
)
def test_codecs_save_room(
    tmp_path: Path, kind: str, compression: Compression, codec: str, most: float
) -> None:
    summary = saved(kind, tmp_path / "regions", compression)
    uses = {use.codec: use for use in summary.codecs}
    assert uses[codec].stored <= most * uses[codec].raw
    assert uses[codec].raw > summary.raw / 2


def test_nothing_to_save(tmp_path: Path) -> None:
    assert save((), tmp_path / "regions", Saving()).raw == 0
    filler = Filler(tmp_path / "regions")
    check(tmp_path / "regions")
    filler.fill(silent)
    assert (filler.spans, filler.raw_bytes) == ((), 0)


def test_two_processes(tmp_path: Path) -> None:
    with Process("text", "page") as first, Process("small") as second:
        spans = (*first.spans(), *second.spans())
        before = [first.content(), second.content()]
        save(spans, tmp_path / "regions", Saving())
        first.lose()
        second.lose()
        Filler(tmp_path / "regions").fill(silent)
        assert [first.content(), second.content()] == before


def test_high_priority_comes_first(tmp_path: Path) -> None:
    with Process("page", "small", "page", "text") as process:
        spans = tuple(
            Span(span.pid, span.start, span.length, Kind.DEVICE, priority)
            for span, priority in zip(process.spans(), (-1, 0, 2, 0), strict=True)
        )
        save(spans, tmp_path / "regions", Saving(workers=1))
    saved = Saved(tmp_path / "regions")
    assert saved.spans == spans
    order = [place.span for located in saved.located() for place in located.places]
    assert list(dict.fromkeys(order)) == [2, 1, 3, 0]


def test_progress_ends_with_all(tmp_path: Path) -> None:
    copied: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    filled: list[tuple[int, int]] = []
    with Process("scattered", "text") as process:
        saver = Saver(tmp_path / "regions", Saving())
        saver.copy(process.spans(), lambda done, total: copied.append((done, total)))
        summary = saver.finish(lambda done, total: written.append((done, total)))
        filler = Filler(tmp_path / "regions")
        filler.fill(lambda done, total: filled.append((done, total)))
    length = sum(span.length for span in process.spans())
    assert copied[-1] == (length, length)
    stored = summary.raw - summary.zero
    assert written[-1] == filled[-1] == (stored, stored)


@pytest.mark.parametrize("runs_on", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
def test_memory_that_is_given_later(tmp_path: Path, *, workers: int, runs_on: bool) -> None:
    copied: list[tuple[int, int]] = []
    with Process("scattered", "text", "huge") as process:
        before, spans = process.content(), process.spans()
        saver = Saver(tmp_path / "regions", Saving(workers=workers), runs_on=runs_on)
        saver.start(spans[:1], more=True)
        time.sleep(0.1)  # in which the threads come to the end of it
        try:
            saver.add(spans[1:])
            saver.wait_copied(lambda done, total: copied.append((done, total)))
            saver.finish(silent)
        finally:
            saver.abort()
        process.lose()
        Filler(tmp_path / "regions").fill(silent)
        assert process.content() == before
    length = sum(span.length for span in spans)
    assert copied[-1] == (length, length)
    assert Filler(tmp_path / "regions").spans == tuple(spans)


def test_memory_that_is_given_twice(process: Process, tmp_path: Path) -> None:
    spans = process.spans()
    saver = Saver(tmp_path / "regions", Saving(workers=2))
    saver.start(spans, more=True)
    try:
        with pytest.raises(UsageError, match="overlap"):
            saver.add(spans[:1])
    finally:
        saver.abort()


def test_threads_that_wait_for_more_memory_end_with_the_others(
    process: Process, tmp_path: Path
) -> None:
    saver = Saver(tmp_path / "regions", Saving(workers=2))
    saver.start(process.spans(), more=True)
    time.sleep(0.1)
    saver.abort()
    assert not [each for each in threading.enumerate() if each.name.startswith("gpusnap-data")]


@pytest.mark.parametrize(("workers", "first"), [(8, 6), (4, 3), (3, 3), (1, 1)])
def test_some_threads_wait_until_the_caller_needs_no_processor(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, workers: int, first: int
) -> None:
    begun: list[str] = []
    work = Saver._work

    def note(saver: Saver, windows: Windows) -> None:
        begun.append(threading.current_thread().name)
        work(saver, windows)

    monkeypatch.setattr(Saver, "_work", note)
    before = process.content()
    saver = Saver(tmp_path / "regions", Saving(workers=workers, budget=8 << 20))
    saver.start(process.spans(), more=True)
    try:
        deadline = time.monotonic() + 60
        while len(begun) < first and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)  # in which the others would begin
        assert len(begun) == first
        saver.add(())
        saver.use_all()
        saver.wait_copied(silent)
        saver.finish(silent)
        assert len(set(begun)) == workers
    finally:
        saver.abort()
    process.lose()
    Filler(tmp_path / "regions").fill(silent)
    assert process.content() == before


def test_threads_that_wait_for_a_processor_end_with_the_others(
    process: Process, tmp_path: Path
) -> None:
    saver = Saver(tmp_path / "regions", Saving(workers=8))
    saver.start(process.spans())
    saver.abort()
    assert not [each for each in threading.enumerate() if each.name.startswith("gpusnap-data")]


@pytest.mark.parametrize("ends", [True, False])
def test_nothing_is_made_durable_while_the_target_may_stand_still(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    synced: list[int] = []

    def fsync(descriptor: int) -> None:
        synced.append(descriptor)

    monkeypatch.setattr(pack, "os", SimpleNamespace(**{**vars(os), "fsync": fsync}))
    saver = Saver(tmp_path / "regions", Saving(workers=2))
    saver.copy(process.spans(), silent)
    try:
        deadline = time.monotonic() + 60
        while saver._backlog.written < saver._backlog.copied and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)  # in which the threads would do it
        assert not synced
        if ends:
            saver.finish(silent)
            assert synced
    finally:
        saver.abort()
    assert (tmp_path / "regions/index").exists() is ends
