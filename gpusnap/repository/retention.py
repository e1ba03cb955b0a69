"""Which snapshots to keep: pure rules, after ``restic forget``; nothing here removes anything."""

import re
import shlex
from calendar import monthrange
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import groupby
from typing import Self

import msgspec

from gpusnap.errors import UsageError
from gpusnap.repository.snapshot import Snapshot
from gpusnap.repository.storage import printable
from gpusnap.repository.tags import check_tags

_UNITS = {"y": "years", "m": "months", "d": "days", "h": "hours"}
_PART = re.compile(r"(\d{1,5})([ymdh])", re.ASCII)
_BEGINNING = datetime.min.replace(tzinfo=UTC)


class Grouping(StrEnum):
    """Among which snapshots the rules choose."""

    TARGET = "target"
    """Those of one program: the same host and command line of the root process."""
    NONE = "none"
    """All of the repository."""


class Age(msgspec.Struct, frozen=True, kw_only=True):
    """A length of time by the calendar."""

    years: int = 0
    months: int = 0
    days: int = 0
    hours: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read numbers with their units, such as ``2h``, ``3d12h`` or ``1y5m7d``.

        Args:
            text: Each of ``y``, ``m`` (months), ``d`` and ``h`` at most once, in any order.

        Raises:
            UsageError: It is anything else, or zero.
        """
        parts = _PART.findall(text)
        units = [_UNITS[unit] for _, unit in parts]
        whole = "".join(number + unit for number, unit in parts) == text
        age = cls(**{unit: int(number) for unit, (number, _) in zip(units, parts, strict=True)})
        if not whole or len(set(units)) < len(units) or age == cls():
            raise UsageError(
                f"'{text[:60]}' is not an age such as 2h, 3d12h or 1y5m",
                cure="Give numbers with y, m (months), d or h, each at most once",
            )
        return age

    def before(self, instant: datetime) -> datetime:
        """The instant so long before another, in UTC.

        Where a month has no such day, its last one counts.
        """
        instant = instant.astimezone(UTC)
        months = (instant.year - self.years) * 12 + instant.month - 1 - self.months
        year, month = divmod(months, 12)
        if year < 1:
            return _BEGINNING
        day = min(instant.day, monthrange(year, month + 1)[1])
        try:
            moved = instant.replace(year=year, month=month + 1, day=day)
            return moved - timedelta(days=self.days, hours=self.hours)
        except OverflowError:
            return _BEGINNING

    def __str__(self) -> str:
        """As it would be typed."""
        numbers = ((getattr(self, field), unit) for unit, field in _UNITS.items())
        return "".join(f"{number}{unit}" for number, unit in numbers if number)


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which snapshots are kept; one that any of the rules wants is.

    Attributes:
        keep_last: So many of the newest.
        keep_hourly: The newest of each of so many hours that have one, the latest first.
        keep_daily: The same of days.
        keep_weekly: The same of weeks, which begin on Monday.
        keep_monthly: The same of months.
        keep_within: All that are at most so much older than the newest.
        keep_tags: All that have one of these tags.
        group_by: Among which snapshots the rules choose.
    """

    keep_last: int = 0
    keep_hourly: int = 0
    keep_daily: int = 0
    keep_weekly: int = 0
    keep_monthly: int = 0
    keep_within: Age | None = None
    keep_tags: tuple[str, ...] = ()
    group_by: Grouping = Grouping.TARGET

    def __post_init__(self) -> None:
        """Refuse what would keep nothing, or cannot be.

        Raises:
            UsageError: No rule is given, a number is negative, or a tag can be none.
        """
        msgspec.structs.force_setattr(self, "keep_tags", check_tags(self.keep_tags))
        counts = (
            self.keep_last,
            self.keep_hourly,
            self.keep_daily,
            self.keep_weekly,
            self.keep_monthly,
        )
        if min(counts) < 0:
            raise UsageError(f"{min(counts)} snapshots cannot be kept")
        if not (any(counts) or self.keep_within or self.keep_tags):
            raise UsageError(
                "No rule says which snapshots to keep, so all of them would be removed",
                cure="Give one, such as --keep-last 3; gpusnap rm removes by name",
            )


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a snapshot.

    Attributes:
        snapshot: Which one.
        reasons: Why it is kept, in a few words each; without any it is to be removed.
    """

    snapshot: Snapshot
    reasons: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether some rule wants it."""
        return bool(self.reasons)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshots among which the rules chose.

    Attributes:
        host: Where they were made; None where the group is the whole repository.
        command: The root's command line, likewise.
        verdicts: One for each, the newest first.
    """

    host: str | None
    command: tuple[str, ...] | None
    verdicts: tuple[Verdict, ...]

    @property
    def label(self) -> str:
        """How many snapshots of what, in a few words."""
        number = len(self.verdicts)
        snapshots = "1 snapshot" if number == 1 else f"{number} snapshots"
        if self.command is None:
            return f"{snapshots} in all"
        return f"{snapshots} of {shlex.join(self.command) or 'a program'} on {self.host}"


def decide(
    snapshots: Iterable[Snapshot], policy: RetentionPolicy, zone: tzinfo | None = None
) -> tuple[Group, ...]:
    """Choose what to keep.

    Args:
        snapshots: Of one repository.
        policy: The rules.
        zone: Where hours, days, weeks and months begin; None for the local time zone.

    Returns:
        Groups, sorted by host and command line.

    Raises:
        UsageError: Of a group nothing would be kept.
    """
    groups = tuple(_groups(snapshots, policy, zone))
    for group in groups:
        _refuse_to_empty(group, policy)
    return groups


def _groups(
    snapshots: Iterable[Snapshot], policy: RetentionPolicy, zone: tzinfo | None
) -> Iterator[Group]:
    if policy.group_by == Grouping.NONE:
        if verdicts := _judge(tuple(snapshots), policy, zone):
            yield Group(host=None, command=None, verdicts=verdicts)
        return
    for (host, command), members in groupby(sorted(snapshots, key=_target), key=_target):
        verdicts = _judge(tuple(members), policy, zone)
        yield Group(host=host, command=command, verdicts=verdicts)


def _refuse_to_empty(group: Group, policy: RetentionPolicy) -> None:
    """Every other rule keeps the newest: it is the tags that keep nothing, mistyped perhaps."""
    if any(verdict.kept for verdict in group.verdicts):
        return
    tags = " or ".join(map(printable, policy.keep_tags))
    raise UsageError(
        f"Nothing would be kept of {group.label}: none has the tag {tags}",
        cure="Check the tag, or keep some by another rule too, such as --keep-last 1; "
        "gpusnap rm removes by name",
    )


def _target(snapshot: Snapshot) -> tuple[str, tuple[str, ...]]:
    return snapshot.manifest.host.hostname, snapshot.manifest.target.root.command


class _Counted:
    """A rule that keeps the newest snapshot of each of some periods, while its count lasts."""

    def __init__(self, count: int, word: str, period: Callable[[datetime], object] | None) -> None:
        self._left = count
        self._word = word
        self._period = period
        self._last: object = None

    def reason(self, local: datetime, *, oldest: bool) -> str | None:
        """Why a snapshot made then is kept; asked once for each, the newest first."""
        period = self._period(local) if self._period else object()
        new = period != self._last
        # While the count lasts, the oldest one makes the history as long as it can be.
        if self._left == 0 or not (new or oldest):
            return None
        self._left -= 1
        self._last = period
        return f"{self._word} snapshot" if new else f"oldest {self._word} snapshot"


def _judge(
    snapshots: Sequence[Snapshot], policy: RetentionPolicy, zone: tzinfo | None
) -> tuple[Verdict, ...]:
    newest_first = sorted(snapshots, key=lambda each: (each.created, each.name), reverse=True)
    counted = _counted(policy)
    verdicts = []
    for number, snapshot in enumerate(newest_first, 1):
        oldest = number == len(newest_first)
        local = snapshot.created.astimezone(zone)
        reasons = [
            *(f"tag {tag}" for tag in policy.keep_tags if tag in snapshot.manifest.tags),
            *_within(snapshot, newest_first[0], policy.keep_within),
            *(rule.reason(local, oldest=oldest) for rule in counted),
        ]
        verdicts.append(Verdict(snapshot, tuple(filter(None, reasons))))
    return tuple(verdicts)


def _counted(policy: RetentionPolicy) -> tuple[_Counted, ...]:
    return (
        _Counted(policy.keep_last, "last", None),
        _Counted(policy.keep_hourly, "hourly", lambda time: (time.date(), time.hour)),
        _Counted(policy.keep_daily, "daily", lambda time: time.date()),
        _Counted(policy.keep_weekly, "weekly", lambda time: time.isocalendar()[:2]),
        _Counted(policy.keep_monthly, "monthly", lambda time: (time.year, time.month)),
    )


def _within(snapshot: Snapshot, newest: Snapshot, age: Age | None) -> tuple[str, ...]:
    if age is None or snapshot.created < age.before(newest.created):
        return ()
    return (f"within {age}",)
