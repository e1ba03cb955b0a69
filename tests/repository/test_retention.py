"""Which snapshots a policy keeps."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusnap.errors import UsageError
from gpusnap.repository import Age, Grouping, RetentionPolicy, Snapshot, check_tags, timestamp
from gpusnap.repository.retention import decide
from tests.repository.samples import HOST, TARGET, manifest

BERLIN = ZoneInfo("Europe/Berlin")


def made(
    created: datetime, name: str = "", *, tags: tuple[str, ...] = (), **place: Any
) -> Snapshot:
    """A snapshot that is on no disk, of the sample's target unless told otherwise."""
    root = msgspec.structs.replace(TARGET.root, command=place.get("command", ("train",)))
    changed = msgspec.structs.replace(
        manifest("x", created=timestamp(created)),
        tags=tags,
        host=msgspec.structs.replace(HOST, hostname=place.get("host", "node")),
        target=msgspec.structs.replace(TARGET, processes=(root,)),
    )
    return Snapshot(Path("repo") / (name or f"{created:%dT%H%M}"), changed)


def at(day: int, hour: int = 12, minute: int = 0) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


def reasons(
    snapshots: Iterable[Snapshot], zone: Any = UTC, **rules: Any
) -> dict[str, tuple[str, ...]]:
    """Why each snapshot is kept, the newest first."""
    groups = decide(snapshots, RetentionPolicy(**rules), zone)
    return {each.snapshot.name: each.reasons for group in groups for each in group.verdicts}


def kept(snapshots: Iterable[Snapshot], zone: Any = UTC, **rules: Any) -> list[str]:
    return [name for name, why in reasons(snapshots, zone, **rules).items() if why]


def test_last() -> None:
    snapshots = [made(at(day)) for day in (3, 1, 2)]
    assert reasons(snapshots, keep_last=2) == {
        "03T1200": ("last snapshot",),
        "02T1200": ("last snapshot",),
        "01T1200": (),
    }


def test_the_newest_of_each_period() -> None:
    snapshots = [made(at(day, hour)) for day in (1, 2, 3) for hour in (6, 18)]
    assert kept(snapshots, keep_daily=2) == ["03T1800", "02T1800"]
    assert kept(snapshots, keep_hourly=3) == ["03T1800", "03T0600", "02T1800"]
    # 1 March 2026 is a Sunday, with which a week ends.
    assert kept(snapshots, keep_weekly=2) == ["03T1800", "01T1800"]


def test_months() -> None:
    snapshots = [made(datetime(2026, month, 15, tzinfo=UTC), f"{month}") for month in range(1, 6)]
    assert kept(snapshots, keep_monthly=3) == ["5", "4", "3"]


def test_periods_without_a_snapshot_do_not_count() -> None:
    snapshots = [made(at(day)) for day in (1, 9, 20)]
    assert kept(snapshots, keep_daily=2) == ["20T1200", "09T1200"]


def test_while_the_count_lasts_the_oldest_is_kept() -> None:
    snapshots = [made(at(1, 6)), made(at(1, 7)), made(at(1, 8))]
    found = reasons(snapshots, keep_daily=3)
    assert found == {
        "01T0800": ("daily snapshot",),
        "01T0700": (),
        "01T0600": ("oldest daily snapshot",),
    }
    assert kept(snapshots, keep_daily=1) == ["01T0800"]


def test_days_begin_where_the_user_lives() -> None:
    """22:30 and 23:30 UTC are of two days in Berlin, in winter time."""
    snapshots = [made(at(1, 22, 30)), made(at(1, 23, 30)), made(at(2, 1))]
    assert kept(snapshots, UTC, keep_daily=2) == ["02T0100", "01T2330"]
    assert kept(snapshots, BERLIN, keep_daily=2) == ["02T0100", "01T2230"]


def test_the_hour_that_comes_twice_is_one() -> None:
    night = datetime(2026, 10, 25, tzinfo=UTC)
    snapshots = [made(night + timedelta(minutes=minutes)) for minutes in (10, 70, 130)]
    assert kept(snapshots, BERLIN, keep_hourly=2) == ["25T0210", "25T0110"]


def test_within_counts_back_from_the_newest() -> None:
    snapshots = [made(at(day)) for day in (1, 2, 3, 4)]
    assert reasons(snapshots, keep_within=Age(days=2)) == {
        "04T1200": ("within 2d",),
        "03T1200": ("within 2d",),
        "02T1200": ("within 2d",),
        "01T1200": (),
    }


def test_tags_are_kept_beyond_all_counts() -> None:
    snapshots = [made(at(1), tags=("best", "v1")), made(at(2)), made(at(3))]
    assert reasons(snapshots, keep_last=1, keep_tags=("v1", "best")) == {
        "03T1200": ("last snapshot",),
        "02T1200": (),
        "01T1200": ("tag v1", "tag best"),
    }


def test_a_group_is_never_emptied() -> None:
    snapshots = [
        made(at(1), tags=("best",)),
        made(at(2), command=("train", "-b c")),
        made(at(3), command=("train", "-b c")),
    ]
    with pytest.raises(UsageError) as caught:
        decide(snapshots, RetentionPolicy(keep_tags=("best", "v1")))
    assert caught.value.text == (
        "Nothing would be kept of 2 snapshots of train '-b c' on node: none has the tag best or v1"
    )
    assert "--keep-last 1" in str(caught.value.cure)
    assert kept(snapshots, keep_tags=("best",), group_by=Grouping.NONE) == ["01T1200"]
    with pytest.raises(UsageError, match="kept of 3 snapshots in all"):
        decide(snapshots, RetentionPolicy(keep_tags=("bset",), group_by=Grouping.NONE))
    with pytest.raises(UsageError, match="kept of 1 snapshot of train on node"):
        decide(snapshots[:1], RetentionPolicy(keep_tags=("bset",)))
    assert kept(snapshots, keep_tags=("bset",), keep_last=1) == ["01T1200", "03T1200"]


def test_each_target_by_itself() -> None:
    snapshots = [
        made(at(1), "a", command=("train", "-a")),
        made(at(2), "b", command=("train", "-b")),
        made(at(3), "c", command=("train", "-b"), host="other"),
        made(at(4), "d", command=("train", "-b")),
    ]
    assert kept(snapshots, keep_last=1) == ["a", "d", "c"]
    assert kept(snapshots, keep_last=1, group_by=Grouping.NONE) == ["d"]
    assert decide([], RetentionPolicy(keep_last=1)) == ()
    assert decide([], RetentionPolicy(keep_last=1, group_by=Grouping.NONE)) == ()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({}, "No rule says"),
        ({"group_by": Grouping.NONE}, "No rule says"),
        ({"keep_last": 0, "keep_tags": ()}, "No rule says"),
        ({"keep_last": 2, "keep_daily": -1}, "-1 snapshots"),
        ({"keep_tags": ("a b",)}, "The tag 'a b' holds a space"),
    ],
)
def test_policies_that_cannot_be(rules: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RetentionPolicy(**rules)


def test_a_single_tag_may_come_by_itself() -> None:
    assert RetentionPolicy(keep_tags="best").keep_tags == ("best",)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("2h", Age(hours=2)),
        ("3d12h", Age(days=3, hours=12)),
        ("1y5m7d2h", Age(years=1, months=5, days=7, hours=2)),
        ("12h3d", Age(days=3, hours=12)),
    ],
)
def test_ages(text: str, age: Age) -> None:
    assert Age.parse(text) == age
    assert Age.parse(str(age)) == age


@pytest.mark.parametrize("text", ["", "2", "h", "2w", "0d", "-1d", "1d1d", "1.5h", "1d 2h", "²h"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(UsageError, match="is not an age") as caught:
        Age.parse(text)
    assert caught.value.cure


@pytest.mark.parametrize(
    ("age", "before"),
    [
        (Age(hours=13), "2026-03-30T23:00:00+00:00"),
        (Age(months=1), "2026-02-28T12:00:00+00:00"),
        (Age(years=2, months=1), "2024-02-29T12:00:00+00:00"),
        (Age(months=3, days=1), "2025-12-30T12:00:00+00:00"),
        (Age(years=3000), "0001-01-01T00:00:00+00:00"),
        (Age(days=99999, years=1900), "0001-01-01T00:00:00+00:00"),
    ],
)
def test_going_back_in_time(age: Age, before: str) -> None:
    assert age.before(at(31)) == datetime.fromisoformat(before)


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("", "is empty"),
        ("a b", "holds a space"),
        ("a,b", "holds a comma"),
        ("a\n", "cannot be printed"),
        ("ü" * 101, "exceeds 200 bytes"),
        (3, "is not text"),
    ],
)
def test_what_is_no_tag(tag: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check_tags(["good", tag])
    assert caught.value.cure


def test_tags_count_once() -> None:
    assert check_tags(["b", "a", "b"]) == ("b", "a")
    assert check_tags("best") == ("best",)


DAY = 24 * 60
# Some of them close together, across the night in which Berlin's clocks go back.
MOMENTS = st.one_of(st.integers(0, 3 * 365 * DAY), st.integers(0, 2 * DAY)).map(
    lambda minutes: datetime(2024, 10, 26, tzinfo=UTC) + timedelta(minutes=minutes)
)
SNAPSHOTS = st.lists(
    st.builds(
        made,
        MOMENTS,
        tags=st.sampled_from([(), ("best",), ("best", "v1")]),
        command=st.sampled_from([("train",), ("serve",)]),
    ),
    max_size=15,
    unique_by=lambda each: each.name,
)
COUNTS = st.integers(0, 6)
AGES = st.none() | st.builds(Age, months=COUNTS, days=COUNTS, hours=st.integers(1, 6))
COUNTED = ("keep_last", "keep_hourly", "keep_daily", "keep_weekly", "keep_monthly")
RULES = st.fixed_dictionaries(
    dict.fromkeys(COUNTED, COUNTS)
    | {
        "keep_within": AGES,
        "keep_tags": st.sampled_from([(), ("v1",)]),
        "group_by": st.sampled_from(Grouping),
    }
).filter(lambda rules: rules["keep_within"] or any(rules[each] for each in COUNTED))
ZONES = st.sampled_from([UTC, BERLIN, ZoneInfo("Australia/Lord_Howe")])


@settings(max_examples=60)
@given(SNAPSHOTS, RULES, ZONES, st.integers(1, 5))
def test_the_newest_always_stay(
    snapshots: list[Snapshot], rules: dict[str, Any], zone: Any, number: int
) -> None:
    groups = decide(snapshots, RetentionPolicy(**rules | {"keep_last": number}), zone)
    assert sum(len(group.verdicts) for group in groups) == len(snapshots)
    for group in groups:
        created = [each.snapshot.created for each in group.verdicts]
        assert created == sorted(created, reverse=True)
        assert all(each.kept for each in group.verdicts[:number])


@settings(max_examples=60)
@given(SNAPSHOTS, RULES, ZONES)
def test_a_second_time_changes_nothing(
    snapshots: list[Snapshot], rules: dict[str, Any], zone: Any
) -> None:
    once = reasons(snapshots, zone, **rules)
    left = [each for each in snapshots if once[each.name]]
    assert reasons(left, zone, **rules) == {name: why for name, why in once.items() if why}


@settings(max_examples=60)
@given(SNAPSHOTS, RULES, ZONES, st.sampled_from(COUNTED))
def test_more_keeps_more(
    snapshots: list[Snapshot], rules: dict[str, Any], zone: Any, rule: str
) -> None:
    fewer = kept(snapshots, zone, **rules)
    more = kept(snapshots, zone, **rules | {rule: rules[rule] + 1})
    assert set(fewer) <= set(more)
