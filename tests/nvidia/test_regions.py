from hypothesis import given
from hypothesis import strategies as st

from gpusnap_nvidia.regions import new_regions

Ranges = list[tuple[int, int]]


def test_a_mapping_the_kernel_merged_with_a_neighbour() -> None:
    (region,) = new_regions(7, [(10, 20)], [(10, 30)])
    assert (region.pid, region.start, region.length) == (7, 20, 10)


def test_new_memory_on_both_sides_and_between() -> None:
    regions = new_regions(7, [(10, 20), (30, 40)], [(5, 45)])
    assert [(each.start, each.length) for each in regions] == [(5, 5), (20, 10), (40, 5)]


def test_memory_that_went_away_is_no_region() -> None:
    assert new_regions(7, [(10, 20), (30, 40)], [(30, 40)]) == ()


def as_ranges(points: set[int]) -> Ranges:
    ordered = sorted(points)
    return list(zip(ordered[::2], ordered[1::2], strict=False))


def covered(ranges: Ranges) -> set[int]:
    return {point for start, end in ranges for point in range(start, end)}


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_exactly_what_was_not_there_before(before: set[int], after: set[int]) -> None:
    old, new = as_ranges(before), as_ranges(after)
    regions = [(each.start, each.start + each.length) for each in new_regions(7, old, new)]
    assert covered(regions) == covered(new) - covered(old)
