"""How memory is handed out to threads."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.datapath import CHUNK, Kind, Span, source
from gpusnap.datapath.source import Piece, Pieces, Runs, Wanted, Window, Windows
from gpusnap.native import Copied, Outlet, Sent

GIB = 1 << 30
PAGE = 4096
SIZE = 4 * CHUNK
START = 1 << 40


class Known:
    """A source of which is known where anything is; counts how often it is asked."""

    def __init__(self, *runs: tuple[int, int]) -> None:
        self._runs = runs
        self.looks = 0

    def populated(self, _span: Span, offset: int, length: int) -> list[tuple[int, int]]:
        self.looks += 1
        bounds = (
            (max(begin, offset), min(begin + size, offset + length)) for begin, size in self._runs
        )
        return [(low, high - low) for low, high in bounds if low < high]

    def read(self, _wanted: Sequence[Wanted], _buffer: memoryview) -> list[Copied]:
        raise NotImplementedError

    def send(self, _span: Span, _runs: Runs, _buffer: memoryview, _outlet: Outlet) -> Sent:
        raise NotImplementedError


def spans_of(*lengths: int) -> tuple[Span, ...]:
    return tuple(
        Span(7, START + number * 64 * GIB, length, Kind.HOST)
        for number, length in enumerate(lengths)
    )


def windows(known: Known, *lengths: int) -> Windows:
    return Windows(spans_of(*lengths), known, SIZE)


def taken(handed: Windows) -> list[Window]:
    return list(iter(handed.take, None))


RUNS = st.lists(st.integers(1, 300), min_size=2, max_size=40).map(
    lambda steps: [
        (sum(steps[:number]) * PAGE, steps[number] * PAGE) for number in range(1, len(steps), 2)
    ]
)


@given(RUNS)
def test_all_that_is_there_is_handed_out_once(runs: list[tuple[int, int]]) -> None:
    length = sum(runs[-1]) + 5 * PAGE
    found = taken(windows(Known(*runs), length))
    assert sum(window.passed for window in found) == length
    pieces = [piece for window in found for piece in window.runs]
    pages = [(p.offset + at) for p in pieces for at in range(0, p.length, PAGE)]
    assert pages == [begin + at for begin, size in runs for at in range(0, size, PAGE)]
    for window in found:
        assert len({piece.offset // SIZE for piece in window.runs}) <= 1
        assert all((p.offset + p.length - 1) // SIZE == p.offset // SIZE for p in window.runs)


@given(RUNS, st.integers(0, 5))
def test_the_same_is_handed_out_where_somebody_looked_ahead(
    runs: list[tuple[int, int]], before: int
) -> None:
    length = sum(runs[-1]) + 5 * PAGE
    expected = taken(windows(Known(*runs), length))
    handed = windows(Known(*runs), length)
    found = [window for _ in range(before) if (window := handed.take()) is not None]
    handed.look_ahead()
    assert found + taken(handed) == expected


def test_all_is_handed_out_while_somebody_looks_ahead() -> None:
    handed = windows(Known(*((number * 2 * PAGE, PAGE) for number in range(4000))), 8000 * PAGE)
    with ThreadPoolExecutor(4) as pool:
        looking = pool.submit(handed.look_ahead)
        takers = [pool.submit(taken, handed) for _ in range(3)]
        found = [piece for taker in takers for window in taker.result() for piece in window.runs]
        looking.result()
    assert sorted(piece.offset for piece in found) == [number * 2 * PAGE for number in range(4000)]


def test_nobody_looks_ahead_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_MOST_AHEAD", 10)
    known = Known((0, 64 * GIB))
    handed = windows(known, 64 * GIB)
    handed.look_ahead()
    assert known.looks == 1
    assert sum(len(window.runs) for window in taken(handed)) == 64 * GIB // SIZE


def test_who_is_told_to_stop_looks_no_further() -> None:
    known, told = Known((0, GIB)), list[int]()

    def check() -> None:
        told.append(1)
        if len(told) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        Windows((Span(7, START, GIB, Kind.HOST),), known, SIZE, check).look_ahead()
    assert known.looks == 1


def test_what_was_only_reserved_takes_few_looks() -> None:
    known = Known((63 * GIB, PAGE))
    found = taken(windows(known, 64 * GIB))
    assert [window.runs for window in found if window.runs] == [(Piece(0, 63 * GIB, PAGE),)]
    assert known.looks < 50


def test_after_something_was_found_it_is_looked_for_closely_again() -> None:
    known = Known((8 * GIB, 8 * GIB))
    found = taken(windows(known, 16 * GIB))
    assert sum(len(window.runs) for window in found) == 8 * GIB // SIZE
    # All of that at once would have others wait
    assert known.looks >= 30


def test_pieces_end_where_chunks_do() -> None:
    first = (CHUNK // 2, 2 * CHUNK)
    pieces = Pieces(windows(Known(first, (5 * CHUNK, CHUNK)), 8 * CHUNK))
    found = []
    while piece := pieces.peek():
        found.append((piece.offset, piece.length))
        pieces.skip(piece.length)
    half = CHUNK // 2
    assert found == [(half, half), (CHUNK, CHUNK), (2 * CHUNK, half), (5 * CHUNK, CHUNK)]
    assert pieces.window == 2
    assert pieces.take_passed() == 8 * CHUNK
    assert pieces.take_passed() == 0


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([(0, 302 * PAGE)], [(number * 100 * PAGE, 2 * PAGE) for number in range(4)]),
        ([(PAGE, PAGE)], [(PAGE, PAGE)]),
        ([(0, PAGE), (CHUNK, 3 * PAGE)], [(0, PAGE), (CHUNK + PAGE, 2 * PAGE)]),
    ],
)
def test_samples(runs: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    pieces = Pieces(windows(Known(*runs), SIZE))
    pieces.run()
    found = [(each.offset, each.length) for each in pieces.samples(4, 2 * PAGE)]
    assert found == expected


def test_no_samples_of_nothing() -> None:
    pieces = Pieces(windows(Known(), SIZE))
    assert pieces.run() is None
    assert pieces.samples(4, 8192) == []


@given(RUNS, st.integers(0, 5))
def test_what_is_added_comes_behind(runs: list[tuple[int, int]], before: int) -> None:
    length = sum(runs[-1]) + 5 * PAGE
    expected = taken(windows(Known(*runs), length, length))
    first, second = spans_of(length, length)
    handed = Windows((first,), Known(*runs), SIZE, more=True)
    found = [window for _ in range(min(before, len(expected) // 2)) if (window := handed.take())]
    handed.add([second])
    assert found + taken(handed) == expected


def test_who_is_through_waits_for_more() -> None:
    first, second = spans_of(4 * SIZE, 4 * SIZE)
    handed = Windows((first,), Known((0, 4 * SIZE)), SIZE, more=True)
    with ThreadPoolExecutor(5) as pool:
        looking = pool.submit(handed.look_ahead)
        takers = [pool.submit(taken, handed) for _ in range(4)]
        tasks: list[Future[Any]] = [looking, *takers]
        assert not wait(tasks, timeout=0.2).done
        handed.add([second])
        found = [
            piece.span for taker in takers for window in taker.result() for piece in window.runs
        ]
        looking.result()
    assert sorted(found) == [0] * 4 + [1] * 4


def test_there_may_be_nothing_more() -> None:
    handed = Windows(spans_of(SIZE), Known((0, SIZE)), SIZE, more=True)
    handed.add(())
    assert len(taken(handed)) == 1


@pytest.mark.parametrize("waits", [Windows.look_ahead, taken])
def test_who_waits_for_more_can_be_told_to_stop(waits: Callable[[Windows], object]) -> None:
    stopped = threading.Event()

    def check() -> None:
        if stopped.is_set():
            raise InterruptedError

    handed = Windows(spans_of(SIZE), Known((0, SIZE)), SIZE, check, more=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waits, handed)
        assert not wait([waiting], timeout=0.2).done
        stopped.set()
        with pytest.raises(InterruptedError):
            waiting.result(10)
