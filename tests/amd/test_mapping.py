"""Which GPUs may stand in for saved ones: the known cases, the rules, and that it always ends."""

from collections.abc import Callable, Iterator
from itertools import permutations

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpusnap.types import DeviceLink
from gpusnap_amd.mapping import Found, NotFound, Reason, find_map, find_remedy
from gpusnap_amd.mapping_rules import ALL, PCIE, XGMI, Check, Gpu
from gpusnap_amd.mapping_search import LIMIT, find_hives
from tests.amd.topologies import AT_LEAST, SAME, System, misleading, two_hives

Pair = tuple[System, System]


CHECKED = {
    "vram_size": Check.MEMORY,
    "num_gws": Check.GLOBAL_WAVE_SYNC,
    "caches_count": Check.CACHES,
    "fw_version": Check.FIRMWARE,
    "sdma_fw_version": Check.SDMA_FIRMWARE,
}


def turned_hives() -> Pair:
    """Two full hives of different GPUs, in the other order."""
    return two_hives("a", (0xD000, 0xD001), range(8)), two_hives("b", (0xD001, 0xD000), range(8))


def partly_reached() -> Pair:
    """Two GPUs that their CPU does not reach, on both machines."""
    return two_hives("a", (0xD000, 0xD000), range(6)), two_hives("b", (0xD000, 0xD000), range(6))


def partly_reached_in_turned_hives() -> Pair:
    """The hive that must replace the first one has the two GPUs that are not reached."""
    return two_hives("a", (0xD000, 0xD001), range(6)), two_hives("b", (0xD001, 0xD000), range(6))


def one_reached_in_each_hive() -> Pair:
    """The one GPU of a hive that is reached is another one."""
    ids = (0xD000, 0xD001)
    return two_hives("a", ids, {2, 7}, across=False), two_hives("b", ids, {0, 5}, across=False)


def one_reached_by_the_wrong_cpu() -> Pair:
    """As before, but in the second hive no link to a CPU goes both ways."""
    saved, _ = one_reached_in_each_hive()
    present = two_hives("b", (0xD000, 0xD001), {0}, across=False)
    present.link(PCIE, 1, 6)  # a CPU to which that GPU has no link
    return saved, present


def one_hive() -> Pair:
    """A hive, and four GPUs without bridge."""

    def make(prefix: str) -> System:
        return two_hives(prefix, (0xD000, 0xD000), range(8), bridged=(True, False))

    return make("a"), make("b")


def mixed_gpus() -> Pair:
    """Five GPUs of two kinds, the kinds in other places; no hives."""

    def make(prefix: str, others: set[int]) -> System:
        system = System(1, prefix)
        for index in range(5):
            system.add(device_id=0xD001 if index in others else 0xD000)
        for index in range(5):
            system.link(PCIE, index + 1, 0)
            system.link(PCIE, 0, index + 1)
        system.join(PCIE, range(1, 5))
        system.link(PCIE, 5, 1, 2, 3, 4)
        return system

    return make("a", {2, 4}), make("b", {1, 4})


def more_bridges() -> Pair:
    """A second hive where the saved GPUs had no links at all."""

    def make(prefix: str, hives: int) -> System:
        system = System(2, prefix)
        system.add(8)
        for index in range(4):
            system.link(PCIE, index + 2, index % 2)
        for hive in range(hives):
            system.join(XGMI, range(hive * 4 + 2, hive * 4 + 6))
        return system

    return make("a", 1), make("b", 2)


def more_links() -> Pair:
    """Four GPUs that see each other where there were three."""

    def make(prefix: str, joined: int) -> System:
        system = System(1, prefix)
        system.add(5)
        for index in range(5):
            system.link(PCIE, index + 1, 0)
            system.link(PCIE, 0, index + 1)
        system.join(PCIE, range(1, joined + 1))
        for index in range(joined, 5):
            system.link(PCIE, index + 1, *range(1, joined + 1))
        return system

    return make("a", 3), make("b", 4)


CASES: list[tuple[Callable[[], Pair], bool]] = [
    (turned_hives, True),
    (partly_reached, True),
    (partly_reached_in_turned_hives, False),
    (one_reached_in_each_hive, True),
    (one_reached_by_the_wrong_cpu, False),
    (one_hive, True),
    (mixed_gpus, True),
    (more_bridges, True),
    (more_links, True),
]
"""The nine cases of CRIU's ``plugins/amdgpu/tests``, built anew, and its answers."""


@pytest.mark.parametrize(("make", "maps"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_cases_of_the_plugin(make: Callable[[], Pair], maps: bool) -> None:
    saved, present = (system.gpus() for system in make())
    answer = find_map(saved, present)
    assert isinstance(answer, Found) is maps
    if isinstance(answer, Found):
        assert broken_rules(saved, present, answer, ALL) == []


def test_where_only_one_fits() -> None:
    saved, present = one_reached_in_each_hive()
    answer = find_map(saved.gpus(), present.gpus())
    assert isinstance(answer, Found)
    assert {("a2", "b0"), ("a7", "b5")} <= {*answer.gpus}
    assert answer.cpus == ((0, 0), (1, 1))


def test_kinds_in_other_places() -> None:
    saved, present = mixed_gpus()
    answer = find_map(saved.gpus(), present.gpus())
    assert isinstance(answer, Found)
    assert dict(answer.gpus)["a2"] in {"b1", "b4"}


def alone(name: str = "a", /, **changes: int) -> System:
    system = System(1, name)
    system.add(**changes)
    system.link(PCIE, 1, 0)
    system.link(PCIE, 0, 1)
    return system


def only_difference(saved: System, present: System) -> tuple[str, object, object, Check | None]:
    answer = find_map(saved.gpus(), present.gpus())
    assert isinstance(answer, NotFound)
    assert answer.reason is Reason.GPUS
    (obstacle,) = answer.obstacles
    (found,) = obstacle.differences
    return found.what, found.saved, found.present, found.check


@pytest.mark.parametrize("name", sorted({*SAME} - {"capability"}))
def test_property_that_must_be_equal(name: str) -> None:
    for change in (1, -1):
        saved, present = alone(), alone("b", **{name: SAME[name] + change})
        assert only_difference(saved, present) == (name, SAME[name], SAME[name] + change, None)
        assert find_remedy(saved.gpus(), present.gpus()) == frozenset()


@pytest.mark.parametrize(("name", "check"), [*CHECKED.items()])
def test_property_that_must_not_be_less(name: str, check: Check) -> None:
    value = AT_LEAST[name]
    saved, less = alone(), alone("b", **{name: value - 1})
    assert only_difference(saved, less) == (name, value, value - 1, check)
    assert find_remedy(saved.gpus(), less.gpus()) == {check}
    assert isinstance(find_map(saved.gpus(), less.gpus(), ALL - {check}), Found)
    assert isinstance(find_map(saved.gpus(), alone("b", **{name: value + 1}).gpus()), Found)


def test_capability_must_be_equal_while_it_is_checked() -> None:
    saved, present = alone(), alone("b", capability=7)
    assert only_difference(saved, present)[3] is Check.CAPABILITY
    assert find_remedy(saved.gpus(), present.gpus()) == {Check.CAPABILITY}


def test_what_is_not_compared() -> None:
    saved, present = alone(hive_id=1, domain=1, gds_size_in_kb=1), alone("b", location_id=9)
    assert isinstance(find_map(saved.gpus(), present.gpus()), Found)


def test_the_gpu_that_is_left_over_is_named() -> None:
    """Two GPUs need the newer firmware, and only one has it."""
    saved, present = System(0), System(0, "b")
    saved.add(2)
    present.add(1, fw_version=170)
    present.add(1)
    answer = find_map(saved.gpus(), present.gpus())
    assert isinstance(answer, NotFound)
    (obstacle,) = answer.obstacles
    assert obstacle.present.name == "b0"
    assert [each.what for each in obstacle.differences] == ["fw_version"]
    assert find_remedy(saved.gpus(), present.gpus()) == {Check.FIRMWARE}


def test_no_more_checks_are_named_than_are_needed() -> None:
    saved, present = alone(), alone("b", fw_version=1, num_gws=1, vram_size=AT_LEAST["vram_size"])
    assert find_remedy(saved.gpus(), present.gpus()) == {Check.FIRMWARE, Check.GLOBAL_WAVE_SYNC}


def test_other_count() -> None:
    answer = find_map(alone().gpus(), ())
    assert isinstance(answer, NotFound)
    assert answer.reason is Reason.COUNT


def pairs_of_hives(prefix: str, hives: int) -> System:
    system = System(0, prefix)
    system.add(4)
    for hive in range(hives):
        system.join(XGMI, (hive * 2, hive * 2 + 1))
    return system


def test_too_few_hives() -> None:
    answer = find_map(pairs_of_hives("a", 2).gpus(), pairs_of_hives("b", 1).gpus())
    assert isinstance(answer, NotFound)
    assert answer.reason is Reason.HIVES
    more = find_map(pairs_of_hives("a", 1).gpus(), pairs_of_hives("b", 2).gpus())
    assert isinstance(more, Found)


def test_a_hive_does_not_go_into_a_smaller_one() -> None:
    saved, present = System(0), System(0, "b")
    saved.add(5)
    present.add(5)
    saved.join(XGMI, range(3))
    saved.join(PCIE, (3, 4))
    present.join(XGMI, range(2))
    present.join(PCIE, range(5))
    answer = find_map(saved.gpus(), present.gpus())
    assert isinstance(answer, NotFound)
    assert (answer.reason, answer.steps) == (Reason.TOGETHER, 0)


def on_cpus(prefix: str, *cpus: int) -> System:
    system = System(2, prefix)
    system.add(len(cpus))
    for index, cpu in enumerate(cpus):
        system.link(PCIE, index + 2, cpu)
    return system


def test_gpus_of_one_cpu_stay_on_one() -> None:
    saved, present = on_cpus("a", 0, 0).gpus(), on_cpus("b", 0, 1).gpus()
    answer = find_map(saved, present)
    assert isinstance(answer, NotFound)
    assert answer.reason is Reason.TOGETHER
    assert find_remedy(saved, present) == {Check.NUMA}
    assert isinstance(find_map(saved, present, ALL - {Check.NUMA}), Found)


def test_gpus_of_two_cpus_stay_on_two() -> None:
    answer = find_map(on_cpus("a", 0, 1).gpus(), on_cpus("b", 0, 0).gpus())
    assert isinstance(answer, NotFound)
    assert answer.reason is Reason.TOGETHER


def on_links(prefix: str, *gpus: list[tuple[str, int, bool]], cpus: int = 2) -> System:
    """GPUs by their links to CPUs: the bus, the CPU, and whether there is a link back."""
    system = System(cpus, prefix)
    for index, links in enumerate(gpus):
        system.add()
        for kind, cpu, mutual in links:
            system.link(kind, cpus + index, cpu)
            if mutual:
                system.link(kind, cpu, cpus + index)
    return system


def together(saved: System, present: System) -> bool:
    """Whether there is a map, where every GPU has one that could replace it."""
    answer = find_map(saved.gpus(), present.gpus())
    assert isinstance(answer, Found) or answer.reason is Reason.TOGETHER
    return isinstance(answer, Found)


def test_only_the_first_link_to_a_cpu_may_become_a_better_one() -> None:
    assert not together(
        on_links("a", [(PCIE, 0, False)], [(PCIE, 0, False)]),
        on_links("b", [(XGMI, 0, False)], [(XGMI, 0, False)]),
    )
    assert together(
        on_links("a", [(PCIE, 0, False)], [(PCIE, 0, False)]),
        on_links("b", [(XGMI, 0, False)], [(PCIE, 0, False)]),
    )


def test_the_link_to_the_cpu_that_was_picked_counts() -> None:
    assert not together(
        on_links("a", [(PCIE, 0, False)], [(PCIE, 0, True)]),
        on_links("b", [(PCIE, 0, False)], [(PCIE, 0, False), (PCIE, 1, True)]),
    )


def test_another_cpu_is_picked_when_the_first_leads_nowhere() -> None:
    assert together(
        on_links("a", [(PCIE, 0, False)], [(PCIE, 1, False)]),
        on_links("b", [(PCIE, 0, False), (PCIE, 1, False)], [(PCIE, 0, False)]),
    )


def test_a_cpu_is_free_again_after_a_gpu_that_led_nowhere() -> None:
    saved, present = on_cpus("a", 0, 1), on_cpus("b", 0, 1)
    saved.properties[1]["fw_version"] += 1
    present.properties[0]["fw_version"] += 1
    assert together(saved, present)


def in_hives(prefix: str, *hives: tuple[int, ...]) -> System:
    """Hives, and GPUs by themselves, by the versions of their firmware."""
    system = System(0, prefix)
    for versions in hives:
        start = len(system.properties)
        for version in versions:
            system.add(fw_version=version)
        if len(versions) > 1:
            system.join(XGMI, range(start, start + len(versions)))
    return system


def test_a_hive_stays_together() -> None:
    assert not together(in_hives("a", (1, 2), (1,), (2,)), in_hives("b", (1, 1), (2, 2)))


def test_two_hives_do_not_go_into_one() -> None:
    assert not together(
        in_hives("a", (2, 2), (2, 2), (1,), (1,)), in_hives("b", (2, 2, 2, 2), (1, 1))
    )


def test_another_hive_is_taken_when_the_first_does_not_fit() -> None:
    assert together(in_hives("a", (1, 2), (1, 1)), in_hives("b", (1, 1), (1, 2)))


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        ((PCIE, False), (XGMI, False), True),
        ((PCIE, False), (PCIE, True), True),
        ((XGMI, False), (PCIE, False), False),
        ((PCIE, True), (PCIE, False), False),
    ],
)
def test_link_onto_link(old: tuple[str, bool], new: tuple[str, bool], fits: bool) -> None:
    saved, present = System(1), System(1, "b")
    for system, (kind, mutual) in ((saved, old), (present, new)):
        system.add()
        system.link(kind, 1, 0)
        if mutual:
            system.link(kind, 0, 1)
    answer = find_map(saved.gpus(), present.gpus())
    assert isinstance(answer, Found) is fits


# Any topology. What the rules are is written here once more, after the text of them.


def union(gpus: tuple[Gpu, ...]) -> dict[str, frozenset[str]]:
    """Every GPU that has an XGMI link in both ways to its hive."""
    names = {gpu.node: gpu.name for gpu in gpus}
    hive = {gpu.name: {gpu.name} for gpu in gpus}
    for gpu in gpus:
        for link in gpu.links:
            if link.device and link.kind == XGMI and link.mutual:
                both = hive[gpu.name] | hive[names[link.node]]
                for name in both:
                    hive[name] = both
    return {name: frozenset(group) for name, group in hive.items() if len(group) > 1}


def onto(old: DeviceLink, new: DeviceLink, *, same: bool = False) -> bool:
    if same and old.kind != new.kind:
        return False
    upgraded = old.kind == new.kind or (old.kind, new.kind) == (PCIE, XGMI)
    return upgraded and new.mutual >= old.mutual


def broken_rules(
    saved: tuple[Gpu, ...], present: tuple[Gpu, ...], found: Found, checks: frozenset[Check]
) -> list[str]:
    """What is wrong with a map."""
    by_name = {gpu.name: gpu for gpu in present}
    if [old for old, _ in found.gpus] != [gpu.name for gpu in saved]:
        return ["not every saved GPU, in order"]
    if sorted(new for _, new in found.gpus) != sorted(by_name):
        return ["not every GPU once"]
    pairs = [(gpu, by_name[new]) for gpu, (_, new) in zip(saved, found.gpus, strict=True)]
    return [
        *(fault for old, new in pairs for fault in broken_properties(old, new, checks)),
        *broken_hives(union(saved), union(present), dict(found.gpus)),
        *broken_cpus(pairs, dict(found.cpus), numa=Check.NUMA in checks),
    ]


def broken_properties(old: Gpu, new: Gpu, checks: frozenset[Check]) -> Iterator[str]:
    for name in SAME:
        checked = name != "capability" or Check.CAPABILITY in checks
        if checked and old.properties[name] != new.properties[name]:
            yield f"{name} of {old.name}"
    for name, check in CHECKED.items():
        if check in checks and old.properties[name] > new.properties[name]:
            yield f"{name} of {old.name}"
    if len(old.links) > len(new.links):
        yield f"links of {old.name}"


def broken_hives(
    old: dict[str, frozenset[str]], new: dict[str, frozenset[str]], pairs: dict[str, str]
) -> Iterator[str]:
    became = {hive: {new.get(pairs[name]) for name in hive} for hive in set(old.values())}
    for hive, groups in became.items():
        if len(groups) != 1 or None in groups:
            yield f"hive {sorted(hive)}"
    if len({group for groups in became.values() for group in groups}) < len(became):
        yield "hives became one"


def broken_cpus(pairs: list[tuple[Gpu, Gpu]], cpus: dict[int, int], *, numa: bool) -> Iterator[str]:
    picked: set[int] = set()
    if len(set(cpus.values())) < len(cpus):
        yield "CPUs became one"
    for old, new in pairs:
        for link in (link for link in old.links if not link.device):
            there = [other for other in new.links if not other.device and onto(link, other)]
            if numa:
                there = [other for other in there if other.node == cpus.get(link.node)]
                same = any(onto(link, other, same=True) for other in there)
                if there and not same and link.node not in picked:
                    picked.add(link.node)  # the first link to a CPU may become a better one
                    continue
                there = there if same else []
            if not there:
                yield f"link of {old.name} to CPU {link.node}"


@st.composite
def systems(draw: st.DrawFn, prefix: str = "a", most: int = 5) -> System:
    system = System(draw(st.integers(0, 3)), prefix)
    for _ in range(draw(st.integers(1, most))):
        system.add(
            device_id=draw(st.sampled_from([1, 1, 1, 2])), fw_version=draw(st.sampled_from([5, 6]))
        )
    nodes = range(system.cpus + len(system.properties))
    for start in nodes:
        for end in draw(st.lists(st.sampled_from(nodes), max_size=4, unique=True)):
            if start != end:
                kind = draw(st.sampled_from([PCIE, PCIE, XGMI]))
                system.link(kind, start, end)
                if draw(st.booleans()) and (kind, start) not in system.links[end]:
                    system.link(kind, end, start)
    return system


@st.composite
def moved(draw: st.DrawFn, system: System) -> tuple[Gpu, ...]:
    """The same machine with its GPUs in other places; now and then on other CPUs, or older."""
    gpus = list(system.gpus())
    cpu = draw(st.sampled_from([None, None, *range(system.cpus)]))
    order = draw(st.permutations(range(len(gpus))))
    place = {gpus[index].node: system.cpus + new for new, index in enumerate(order)}
    older = draw(st.sampled_from([0, 0, 0, 1]))
    return tuple(
        msgspec.structs.replace(
            gpus[index],
            index=new,
            name=f"b{new}",
            node=system.cpus + new,
            properties={**gpus[index].properties, "fw_version": 6 - older},
            links=tuple(
                msgspec.structs.replace(link, node=place.get(link.node, link.node))
                if link.device or cpu is None or new
                else msgspec.structs.replace(link, node=cpu)
                for link in gpus[index].links
            ),
        )
        for new, index in enumerate(order)
    )


checks_on = st.frozensets(st.sampled_from(Check))


@settings(max_examples=80, deadline=None)
@given(systems(most=8), checks_on)
def test_identity_always_maps(system: System, checks: frozenset[Check]) -> None:
    gpus = system.gpus()
    answer = find_map(gpus, gpus, checks)
    assert isinstance(answer, Found)
    assert all(old == new for old, new in answer.gpus)
    assert all(old == new for old, new in answer.cpus)


@settings(max_examples=80, deadline=None)
@given(st.data(), systems(), checks_on)
def test_every_map_obeys_the_rules(
    data: st.DataObject, system: System, checks: frozenset[Check]
) -> None:
    other = data.draw(st.one_of(moved(system), systems("b").map(System.gpus)))
    answer = find_map(system.gpus(), other, checks)
    if isinstance(answer, Found):
        assert broken_rules(system.gpus(), other, answer, checks) == []
    assert find_map(system.gpus(), other, checks) == answer


def maps_of(saved: tuple[Gpu, ...], present: tuple[Gpu, ...], cpus: int) -> Iterator[Found]:
    """Every map there could be, whatever the rules say."""
    for order in permutations(present):
        pairs = tuple((old.name, new.name) for old, new in zip(saved, order, strict=True))
        for nodes in permutations(range(cpus)):
            yield Found(gpus=pairs, cpus=tuple(enumerate(nodes)), steps=0)


@settings(max_examples=60, deadline=None)
@given(st.data(), systems(most=4), checks_on)
def test_no_map_is_overlooked(
    data: st.DataObject, system: System, checks: frozenset[Check]
) -> None:
    saved = system.gpus()
    # Whether a link may become a better one depends on the order: leave such links out.
    assume(not any(link.kind == XGMI for gpu in saved for link in gpu.links if not link.device))
    present = data.draw(moved(system))
    assume(not any(link.kind == XGMI for gpu in present for link in gpu.links if not link.device))
    answer = find_map(saved, present, checks)
    exists = any(
        broken_rules(saved, present, each, checks) == []
        for each in maps_of(saved, present, system.cpus)
    )
    assert isinstance(answer, Found) is exists


@st.composite
def large_systems(draw: st.DrawFn, prefix: str) -> System:
    """Up to 64 nodes of which many look alike, with many links to CPUs."""
    system = System(draw(st.integers(1, 12)), prefix)
    gpus = 52
    system.add(gpus)
    random = draw(st.randoms(use_true_random=False))
    for node in range(system.cpus, system.cpus + gpus):
        for cpu in random.sample(range(system.cpus), min(random.randint(1, 3), system.cpus)):
            system.link(PCIE, node, cpu)
    hive = draw(st.sampled_from([2, 8, 26]))
    for start in range(system.cpus, system.cpus + gpus - hive + 1, hive):
        system.join(XGMI, range(start, start + hive))
    return system


@settings(max_examples=6, deadline=None)
@given(large_systems("a"), large_systems("b"))
def test_it_ends_within_its_bound(saved: System, present: System) -> None:
    answer = find_map(saved.gpus(), present.gpus())
    assert answer.steps <= LIMIT
    if isinstance(answer, Found):
        assert broken_rules(saved.gpus(), present.gpus(), answer, ALL) == []


def test_it_gives_up_in_the_end() -> None:
    saved, present = misleading("a", 24, 24, 1).gpus(), misleading("b", 24, 24, 12).gpus()
    answer = find_map(saved, present, limit=500)
    assert isinstance(answer, NotFound)
    assert (answer.reason, answer.steps) == (Reason.UNKNOWN, 500)


def test_64_equal_gpus_take_few_steps() -> None:
    """As a machine of eight GPUs in 64 partitions: two CPUs, and every link between partitions."""
    system = System(2)
    system.add(64)
    system.join(XGMI, range(2, 66))
    for index in range(64):
        system.link(PCIE, index + 2, index // 32)
        system.link(PCIE, index // 32, index + 2)
    gpus = system.gpus()
    turned = tuple(msgspec.structs.replace(gpu, name=f"b{gpu.index}") for gpu in reversed(gpus))
    assert len(find_hives(gpus)) == 1
    answer = find_map(gpus, turned)
    assert isinstance(answer, Found)
    assert answer.steps < 200
