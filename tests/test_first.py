"""Which memory is copied before all other."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpusnap.datapath import CHUNK, Kind, Span
from gpusnap.datapath.source import Runs, Wanted, Windows
from gpusnap.native import Copied, Outlet, Sent
from gpusnap.regions import put_first

PAGE = 4096
START = 1 << 40
CHUNKS = 6
SPAN = Span(pid=7, start=START, length=CHUNKS * CHUNK, kind=Kind.HOST)


class Everywhere:
    def populated(self, _span: Span, offset: int, length: int) -> list[tuple[int, int]]:
        return [(offset, length)]

    def read(self, _wanted: Sequence[Wanted], _buffer: memoryview) -> list[Copied]:
        return []

    def send(self, _span: Span, _runs: Runs, _buffer: memoryview, _outlet: Outlet) -> Sent:
        return Sent()


def order(spans: list[Span]) -> list[tuple[int, int]]:
    """Addresses and lengths as they are handed out."""
    windows = Windows(tuple(spans), Everywhere(), 16 * CHUNK)
    taken = (run for window in iter(windows.take, None) for run in window.runs)
    return [(spans[run.span].start + run.offset, run.length) for run in taken]


def test_it_comes_before_device_memory() -> None:
    device = Span(pid=7, start=0, length=CHUNK, kind=Kind.DEVICE, priority=1)
    found = put_first([device, SPAN], 7, [(START + CHUNK, CHUNK)])
    assert order(found) == [
        (START + CHUNK, CHUNK),
        (0, CHUNK),
        (START, CHUNK),
        (START + 2 * CHUNK, (CHUNKS - 2) * CHUNK),
    ]


def test_device_memory_can_be_named() -> None:
    device = Span(pid=7, start=0, length=3 * CHUNK, kind=Kind.DEVICE, priority=1)
    found = put_first([device], 7, [(2 * CHUNK, CHUNK)])
    assert order(found) == [(2 * CHUNK, CHUNK), (0, 2 * CHUNK)]
    assert {span.kind for span in found} == {Kind.DEVICE}


def test_of_another_process_and_of_no_memory() -> None:
    assert put_first([SPAN], 8, [(START, CHUNK)]) == [SPAN]
    elsewhere = [(START - CHUNK, CHUNK), (SPAN.end, CHUNK), (START + CHUNK, 0), (0, -5)]
    assert put_first([SPAN], 7, elsewhere) == [SPAN]


RANGES = st.lists(
    st.tuples(st.integers(START - 2 * CHUNK, SPAN.end + CHUNK), st.integers(0, 3 * CHUNK)),
    max_size=5,
)


@given(RANGES, st.integers(1, CHUNKS * CHUNK // PAGE))
def test_only_the_order_changes(ranges: list[tuple[int, int]], pages: int) -> None:
    whole = Span(pid=7, start=START, length=pages * PAGE, kind=Kind.HOST)
    found = put_first([whole], 7, ranges)
    bounds = [whole.start, *(span.end for span in found)]
    assert [span.start for span in found] == bounds[:-1]
    assert bounds[-1] == whole.end
    # Chunks are cut where they would be.
    assert all(bound % CHUNK == START % CHUNK for bound in bounds[:-1])
    assert all(one.priority != other.priority for one, other in pairwise(found))
    named = [span for span in found if span.priority > whole.priority]
    for start, length in ranges:
        low, high = max(start, whole.start), min(start + length, whole.end)
        assert low >= high or any(span.start <= low and high <= span.end for span in named)
    for span in named:
        for chunk in range(span.start, span.end, CHUNK):
            assert any(
                start < min(chunk + CHUNK, span.end) and start + length > chunk
                for start, length in ranges
                if length
            )
