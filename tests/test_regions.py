from hypothesis import given
from hypothesis import strategies as st

from gpusnap.target import Mapping, new_regions
from gpusnap.types import Region

PAGES = 24


def mapping(start: int, end: int, permissions: str = "rw-p", path: str = "") -> Mapping:
    return Mapping(start, end, permissions, 0, 0 if not path else 7, path)


def test_new_mapping() -> None:
    before = [mapping(10, 20)]
    after = [mapping(10, 20), mapping(30, 50)]
    assert new_regions(1, before, after) == (Region(1, 30, 20),)


def test_mapping_that_grew_on_both_sides() -> None:
    assert new_regions(1, [mapping(10, 20)], [mapping(5, 30)]) == (
        Region(1, 5, 5),
        Region(1, 20, 10),
    )


def test_other_memory_is_no_region() -> None:
    after = [mapping(0, 9, "r--p"), mapping(10, 19, "rw-s"), mapping(20, 29, path="/lib/x")]
    assert new_regions(1, [], after) == ()


def test_memory_that_only_became_writable_is_no_region() -> None:
    assert new_regions(1, [mapping(0, 20, "---p")], [mapping(0, 20)]) == ()


@st.composite
def maps(draw: st.DrawFn) -> list[Mapping]:
    bounds = sorted(draw(st.sets(st.integers(0, PAGES), max_size=10)))
    pairs = zip(bounds[::2], bounds[1::2], strict=False)
    return [mapping(start, end) for start, end in pairs]


def pages(spans: list[tuple[int, int]]) -> set[int]:
    return {page for start, end in spans for page in range(start, end)}


@given(maps(), maps())
def test_exactly_the_new_bytes(before: list[Mapping], after: list[Mapping]) -> None:
    regions = new_regions(1, before, after)
    found = pages([(each.start, each.start + each.length) for each in regions])
    old = pages([(each.start, each.end) for each in before])
    new = pages([(each.start, each.end) for each in after])
    assert found == new - old
    assert sum(each.length for each in regions) == len(found)
