"""What fails in the middle: a sentence, no thread left, nothing that hangs."""

import errno
import itertools
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpusnap.datapath import (
    Compression,
    Filler,
    Kind,
    Saved,
    Saver,
    Saving,
    Span,
    filler,
    pack,
    reading,
    source,
)
from gpusnap.datapath.buffers import Buffers
from gpusnap.datapath.crew import Crew
from gpusnap.datapath.files import write_all
from gpusnap.datapath.records import Index, decode_index, encode_index
from gpusnap.datapath.source import Runs
from gpusnap.errors import GpusnapError, IntegrityError, TargetError, UsageError
from gpusnap.native import (
    Copied,
    Extent,
    MemoryFault,
    Outlet,
    Part,
    Sent,
    copy_straight,
    populated_runs,
    put_extents,
    read_parts,
    write_process,
)
from tests.datapath import program
from tests.datapath.targets import Process, save, silent

FULL = "the disk is full. Free space on that file system, or choose another repository"
FAILED = "the disk failed. Look into the kernel's log"
BOTH = pytest.mark.parametrize("workers", [1, 3])


def attempt(spans: tuple[Span, ...], folder: Path, saving: Saving) -> str | None:
    try:
        save(spans, folder, saving)
    except GpusnapError as error:
        return f"{error.text}. {error.cure}"
    return None


@BOTH
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_full_disk(mounted: Callable[[int], Path], compression: Compression, workers: int) -> None:
    """On ever larger disks, so that every step is refused, until there is room for all."""
    sentences = set()
    saving = Saving(compression=compression, workers=workers, budget=1 << 20)
    with Process("text", "small", "striped") as process:
        for size in (*range(8, 72, 8), *range(128, 12288, 508)):
            folder = mounted(size) / "regions"
            text = attempt(process.spans(), folder, saving)
            if text is None:
                break
            sentences.add(text)
            with pytest.raises(IntegrityError):
                Filler(folder)
    assert text is None
    assert f"Cannot write {folder}/000.pack: {FULL}" in sentences
    assert all(each.startswith(f"Cannot write {folder}/") for each in sentences)
    assert all(each.endswith(FULL) for each in sentences)


def test_no_room_for_the_index(mounted: Callable[[int], Path]) -> None:
    sentences = []
    with Process("page") as process:
        for size in range(4, 64, 4):
            folder = mounted(size) / "regions"
            sentences.append(attempt(process.spans(), folder, Saving(workers=1)))
    assert f"Cannot write {folder}/index: {FULL}" in sentences
    assert sentences[-1] is None


def test_a_folder_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(GpusnapError, match=f"Cannot make {tmp_path}: "):
        Saver(tmp_path, Saving())


@BOTH
@pytest.mark.parametrize("calls", [0, 1, 4])
def test_target_killed_while_it_is_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int, calls: int
) -> None:
    left = [calls]
    with Process("small", "text", "huge") as process:

        def count() -> None:
            left[0] -= 1
            if left[0] < 0:
                process.kill()

        def read(parts: Sequence[Part], buffer: memoryview) -> list[Copied]:
            found, at = list[Copied](), 0
            for part in parts:
                count()
                found += read_parts([part], buffer[at : at + part.length])
                at += part.length
            return found

        def straight(pid: int, base: int, runs: Runs, buffer: memoryview, outlet: Outlet) -> Sent:
            count()
            return copy_straight(pid, base, runs, buffer, outlet)

        monkeypatch.setattr(source, "read_parts", read)
        monkeypatch.setattr(source, "copy_straight", straight)
        saver = Saver(tmp_path / "regions", Saving(workers=workers))
        with pytest.raises(TargetError, match=f"process {process.pid} ") as caught:
            saver.copy(process.spans(), silent)
        with pytest.raises(TargetError) as again:
            saver.finish(silent)
    assert again.value is caught.value
    assert not (tmp_path / "regions/index").exists()


@BOTH
@pytest.mark.parametrize("calls", [0, 1])
def test_memory_that_cannot_be_looked_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int, calls: int
) -> None:
    """Whoever looks, nobody takes what was found so far for all."""
    looks = itertools.count()

    def failing(pid: int, start: int, length: int) -> list[tuple[int, int]]:
        if next(looks) >= calls:
            time.sleep(0.05)
            raise MemoryFault(pid, start, "gone")
        return populated_runs(pid, start, length)

    monkeypatch.setattr(source, "populated_runs", failing)
    with Process("small", "text", "huge") as process:
        saver = Saver(tmp_path / "regions", Saving(workers=workers))
        with pytest.raises(MemoryFault, match="gone"):
            saver.copy(process.spans(), silent)
        saver.abort()
    assert not (tmp_path / "regions/index").exists()


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("sealing", [False, True])
def test_a_disk_that_fails_when_a_pack_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: int, *, sealing: bool
) -> None:
    """It is closed once, also where it was given up, and the disk's word reaches the user."""
    closed = []

    def close(descriptor: int) -> None:
        os.close(descriptor)
        closed.append(descriptor)
        if len(closed) == calls:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def full(*_arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pack, "os", SimpleNamespace(**{**vars(os), "close": close}))
    if not sealing:
        monkeypatch.setattr(pack, "write_all", full)
    with Process("page", "small") as process:
        text = attempt(process.spans(), tmp_path / "regions", Saving(workers=1))
    assert len(closed) == 1
    if calls == 1:
        assert text == f"Cannot write {tmp_path}/regions/000.pack: {FAILED}"
    else:
        assert text == (None if sealing else f"Cannot write {tmp_path}/regions/000.pack: {FULL}")


@pytest.mark.parametrize("started", [0, 1, 2])
def test_no_more_threads(monkeypatch: pytest.MonkeyPatch, started: int) -> None:
    left, start = [started], threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if left[0] == 0:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(GpusnapError, match="allows no more threads"):
        waiting(3)


def test_an_interrupt_while_threads_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        waiting(3)


def test_an_interrupt_before_threads_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Crew, "watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        waiting(3)


def waiting(count: int) -> None:
    """Run threads that wait for ever."""
    crew = Crew()

    def work(_number: int) -> None:
        with crew.changed:
            while True:
                crew.wait()

    crew.run(count, work, silent, 0, lambda: 0)


def test_target_gone_before(tmp_path: Path) -> None:
    with Process("page") as process:
        spans = process.spans()
    with pytest.raises(TargetError, match=f"process {process.pid} "):
        save(spans, tmp_path / "regions", Saving())


def test_interrupt(tmp_path: Path) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with Process("huge", "text") as process:
        saver = Saver(tmp_path / "regions", Saving())
        with pytest.raises(KeyboardInterrupt):
            saver.copy(process.spans(), interrupt)
    saver.abort()
    saver.abort()


@pytest.mark.parametrize("finishing", [False, True])
def test_an_interrupt_does_not_wait_for_a_disk_that_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, finishing: bool
) -> None:
    """The target stands still meanwhile, and is to be let go first."""
    writing, answering = threading.Event(), threading.Event()

    def hang(*arguments: Any) -> int:
        writing.set()
        assert answering.wait(30)
        return write_all(*arguments)

    def interrupt(_done: int, _total: int) -> None:
        assert writing.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(pack, "write_all", hang)
    with Process("huge") as process:
        saving = Saving(compression=Compression.ZSTD, workers=2)
        saver = Saver(tmp_path / "regions", saving, runs_on=finishing)
        if finishing:
            saver.copy(process.spans(), silent)
        with pytest.raises(KeyboardInterrupt):
            saver.finish(interrupt) if finishing else saver.copy(process.spans(), interrupt)
        at_work = threads_at_work()
        answering.set()
        saver.abort()
    assert at_work
    assert not threads_at_work()


def threads_at_work() -> list[threading.Thread]:
    found = threading.enumerate()
    return [each for each in found if each.name.startswith("gpusnap-datapath")]


def test_abort_between_copy_and_finish(tmp_path: Path) -> None:
    with Process("huge", "text") as process:
        saver = Saver(tmp_path / "regions", Saving(compression=Compression.ZSTD))
        saver.copy(process.spans(), silent)
    saver.abort()
    saver.abort()


def test_abort_before_copy(tmp_path: Path) -> None:
    Saver(tmp_path / "regions", Saving()).abort()


def test_finish_after_abort_writes_no_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    aborting = threading.Event()

    def wait(*arguments: Any) -> int:
        assert aborting.wait(60)
        return write_all(*arguments)

    monkeypatch.setattr(pack, "write_all", wait)
    with Process("huge") as process:
        saver = Saver(tmp_path / "regions", Saving(compression=Compression.LZ4, workers=1))
        saver.copy(process.spans(), silent)
        threading.Timer(0.2, aborting.set).start()
        saver.abort()
        with pytest.raises(RuntimeError, match="called off"):
            saver.finish(silent)
    assert not (tmp_path / "regions/index").exists()


def test_the_target_is_released_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    may_write = threading.Event()

    def wait(*arguments: Any) -> int:
        assert may_write.wait(60)
        return write_all(*arguments)

    monkeypatch.setattr(pack, "write_all", wait)
    saver = Saver(tmp_path / "regions", Saving(compression=Compression.ZSTD, workers=2))
    with Process("huge", "text", "halves") as process:
        before = process.content()
        saver.copy(process.spans(), silent)
        process.lose()
        may_write.set()
        saver.finish(silent)
        Filler(tmp_path / "regions").fill(silent)
        assert process.content() == before


@pytest.mark.parametrize("budget", [1, 4096, 1 << 20, 5 << 20, 100 << 20])
@pytest.mark.parametrize("workers", [1, 4])
def test_buffers_stay_within_the_budget(budget: int, workers: int) -> None:
    buffers = Buffers(budget, workers)
    taken = []
    while (buffer := buffers.take()) is not None:
        taken.append(buffer)
    assert len(taken) == 1 or sum(len(each.memory) for each in taken) <= budget
    assert len(taken) * buffers.size >= min(budget, 1 << 20) * 3 // 4
    buffers.give(taken[0])
    assert buffers.take() is taken[0]


@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    """Allow the process so many bytes more than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)

    def limit(more: int) -> None:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * program.PAGE
        resource.setrlimit(resource.RLIMIT_AS, (size + more, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_buffers_that_cannot_be_had(limited: Callable[[int], None]) -> None:
    size = 1 << 30
    buffers = Buffers(10 * size, 1)
    buffers.size = size
    limited(size * 3 // 2)
    first = buffers.take()
    assert first is not None
    assert buffers.take() is None
    none = Buffers(10 * size, 1)
    none.size = size
    with pytest.raises(GpusnapError, match="no memory for a buffer"):
        none.take()


def test_no_memory_to_read_a_pack_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_arguments: Any, **_more: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with Process("page") as process:
        save(process.spans(), tmp_path / "regions", Saving())
        monkeypatch.setattr("mmap.mmap", refuse)
        with pytest.raises(GpusnapError, match="no memory for a buffer"):
            Filler(tmp_path / "regions").fill(silent)


@pytest.mark.parametrize(
    ("spans", "why"),
    [
        ([(1, 0x1001, 4096)], "whole pages"),
        ([(1, 0x1000, 100)], "whole pages"),
        ([(1, 0x1000, 0)], "whole pages"),
        ([(1, 0x1000, 8192), (1, 0x2000, 4096)], "overlap at 0x2000"),
        ([(1, (1 << 64) - 4096, 8192)], "cannot exist"),
        ([(0, 0x1000, 4096)], "cannot exist"),
    ],
)
def test_spans_that_cannot_be(tmp_path: Path, spans: list[tuple[int, int, int]], why: str) -> None:
    made = tuple(Span(*span, Kind.HOST) for span in spans)
    with pytest.raises(UsageError, match=why):
        save(made, tmp_path / "regions", Saving())


def test_numbers_that_cannot_be() -> None:
    with pytest.raises(UsageError):
        Saving(workers=0)
    with pytest.raises(UsageError):
        Saving(budget=0)


def test_wrong_order(tmp_path: Path) -> None:
    saver = Saver(tmp_path / "regions", Saving())
    with pytest.raises(RuntimeError):
        saver.finish(silent)
    saver.copy((), silent)
    with pytest.raises(RuntimeError):
        saver.copy((), silent)


@BOTH
@pytest.mark.parametrize("calls", [0, 1, 4])
@pytest.mark.parametrize("in_c", [True, False], ids=["in-c", "in-steps"])
def test_target_killed_while_it_is_filled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int, calls: int, *, in_c: bool
) -> None:
    left = [calls]
    with Process("small", "text", "huge") as process:
        save(process.spans(), tmp_path / "regions", Saving())

        def count() -> None:
            left[0] -= 1
            if left[0] < 0:
                process.kill()

        def write(pid: int, address: int, data: memoryview) -> None:
            count()
            write_process(pid, address, data)

        def put(descriptor: int, extents: Sequence[Extent], buffer: bytearray) -> int:
            count()
            return put_extents(descriptor, extents[:1], buffer) if in_c else 0

        monkeypatch.setattr(filler, "write_process", write)
        monkeypatch.setattr(reading, "put_extents", put)
        with pytest.raises(TargetError, match=f"process {process.pid} "):
            Filler(tmp_path / "regions", workers=workers).fill(silent)


def test_from_a_chunk_on_that_c_refuses_it_goes_step_by_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Memory that C cannot write to often is large: to ask it again each time would cost much."""
    asked = []
    with Process("huge") as process:
        before = process.content()
        save(process.spans(), tmp_path / "regions", Saving(compression=Compression.NONE, workers=1))
        process.lose()

        def put(descriptor: int, extents: Sequence[Extent], buffer: bytearray) -> int:
            asked.append(len(extents))
            return put_extents(descriptor, extents[:1], buffer)

        monkeypatch.setattr(reading, "put_extents", put)
        Filler(tmp_path / "regions", workers=1).fill(silent)
        assert process.content() == before
    assert sum(asked) == sum(map(len, Saved(tmp_path / "regions").tables)) > 2


def test_memory_that_is_not_there(tmp_path: Path) -> None:
    with Process("page") as process:
        save(process.spans(), tmp_path / "regions", Saving())
        index = tmp_path / "regions/index"
        before = decode_index(index.read_bytes())
        moved = Span(process.pid, 0x1000, program.PAGE, Kind.HOST)
        index.write_bytes(encode_index(Index((moved,), before.packs, before.places)))
        with pytest.raises(TargetError, match="0x1000"):
            Filler(tmp_path / "regions").fill(silent)


def test_reading_back_finds_what_was_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Process("small") as process:
        save(process.spans(), tmp_path / "regions", Saving())
        process.lose()
        monkeypatch.setattr(filler, "write_process", lambda *_: None)
        monkeypatch.setattr(reading, "put_extents", lambda _file, extents, _buffer: len(extents))
        Filler(tmp_path / "regions").fill(silent)
        with pytest.raises(TargetError, match="is not what was written"):
            Filler(tmp_path / "regions").fill(silent, verify=True)
