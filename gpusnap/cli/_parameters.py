"""The kinds of values that can be typed: PIDs, durations, folders, as callbacks for click."""

import os
import re
from pathlib import Path

import click

from gpusnap.datapath import Subset, parse_subset
from gpusnap.inprocess.answers import check_overrides

_MICROSECONDS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
}
_BYTES: dict[str, int] = {"B": 1} | {
    f"{letter}{ending}": int(base**power)
    for power, letter in enumerate("KMGT", 1)
    for ending, base in (("iB", 1024), ("B", 1000), ("", 1024))
}
_MOST_BYTES = 1 << 60
_LONGEST_US = 30 * 24 * _MICROSECONDS["h"]
_LARGEST_PID = 2**31 - 1
_SHOWN = 60
"""Characters of a refused value that are shown."""


class WholeNumber(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"


def _refused(value: str, why: str) -> click.BadParameter:
    # Click itself adds which argument or option is meant.
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    return click.BadParameter(f"'{shown}' {why}")


def parse_pid(value: str) -> int:
    """Read a process number.

    Raises:
        click.BadParameter: It is none.
    """
    digits = value.isascii() and value.isdigit() and len(value) <= len(str(_LARGEST_PID))
    if not digits or int(value) > _LARGEST_PID:
        raise _refused(value, "is not a PID, which is a whole number")
    return int(value)


def parse_duration(value: str) -> int:
    """Read a number and its unit, or bare seconds, as microseconds.

    Raises:
        click.BadParameter: It is no duration, of an unknown unit, zero, or beyond all reason.
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([^\W\d_]*)", value, re.ASCII)
    if match is None:
        raise _refused(value, "is not a duration such as 10s, 500ms or 2m")
    number, unit = match.groups()
    factor = _MICROSECONDS.get(unit or "s")
    if factor is None:
        known = ", ".join(_MICROSECONDS)
        raise _refused(value, f"has the unknown unit '{unit}' (known: {known})")
    microseconds = round(float(number) * factor)
    if not 0 < microseconds <= _LONGEST_US:
        raise _refused(value, "is not between one microsecond and 30 days")
    return microseconds


def parse_size(value: str) -> int:
    """Read a number of bytes: bare, or with a unit such as GiB (1024) or GB (1000).

    Raises:
        click.BadParameter: It is no size, of an unknown unit, zero, or beyond all reason.
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)\s*([^\W\d_]*)", value, re.ASCII)
    if match is None:
        raise _refused(value, "is not a size such as 8GiB, 500MB or 1073741824")
    number, unit = match.groups()
    factor = _BYTES.get(unit or "B")
    if factor is None:
        raise _refused(value, f"has the unknown unit '{unit}' (known: {', '.join(_BYTES)})")
    size = round(float(number) * factor)
    if not 0 < size <= _MOST_BYTES:
        raise _refused(value, "is not between one byte and an exbibyte")
    return size


def parse_device_map(value: str) -> tuple[tuple[str, str], ...]:
    """Read pairs such as ``0=1,1=0`` of a saved device and the one that is to replace it.

    Raises:
        click.BadParameter: It is none.
    """
    split = [pair.partition("=") for pair in value.split(",")]
    pairs = tuple((old.strip(), new.strip()) for old, _, new in split)
    if not all(old and new and "=" not in new for old, new in pairs):
        raise _refused(value, "is no device map such as 0=1,1=0")
    return pairs


def parse_devices(value: str) -> tuple[str, ...]:
    """Read a list of devices such as ``0,1``.

    Raises:
        click.BadParameter: It is none.
    """
    names = tuple(part.strip() for part in value.split(","))
    if not all(names):
        raise _refused(value, "is no list of devices such as 0,1")
    return names


def parse_range(value: str) -> tuple[int, int]:
    """Read a range of addresses as /proc/PID/maps has them: where it begins, and its bytes.

    Raises:
        click.BadParameter: It is none.
    """
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{1,16})-(?:0x)?([0-9a-f]{1,16})", value, re.IGNORECASE)
    start, end = (int(part, 16) for part in match.groups()) if match else (0, 0)
    if start >= end:
        raise _refused(value, "is no range of addresses such as 7f0000000000-7f0040000000")
    return start, end - start


def parse_folder(value: str) -> Path:
    """Read a path; ``~`` is the home folder, also where no shell has seen to that.

    Raises:
        click.BadParameter: It is no path.
    """
    if not value or "\0" in value:
        raise _refused(value, "is not a path")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise _refused(value, "names the home folder of nobody known") from None


def parse_name(value: str) -> str:
    """Read the name or path of a snapshot; in a path, ``~`` is the home folder.

    Raises:
        click.BadParameter: It is the home folder of nobody known.
    """
    if not value.startswith("~") or "/" not in value:
        return value
    parse_folder(value)
    # Whatever else is wrong with the path is left for others to see.
    return os.path.expanduser(value)  # noqa: PTH111 - pathlib would tidy it up


def pid(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of PID arguments."""
    return None if value is None else parse_pid(value)


def duration(_context: click.Context, _parameter: click.Parameter, value: str) -> int:
    """Callback of options that take a duration."""
    return parse_duration(value)


def optional_duration(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> int | None:
    """Callback of options that take a duration or nothing."""
    return None if value is None else parse_duration(value)


def size(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of options that take a number of bytes."""
    return None if value is None else parse_size(value)


def name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of arguments and options that name a snapshot."""
    return None if value is None else parse_name(value)


def names(
    _context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Callback of arguments that name several snapshots."""
    return tuple(map(parse_name, value))


def folder(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Path | None:
    """Callback of options that take a folder."""
    return None if value is None else parse_folder(value)


def device_map(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> tuple[tuple[str, str], ...]:
    """Callback of options that say which device replaces which."""
    return () if value is None else parse_device_map(value)


def devices(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> tuple[str, ...]:
    """Callback of options that list devices."""
    return () if value is None else parse_devices(value)


def parse_grid(values: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Read lists of values such as ``lr=1e-4,3e-4``, each for a name by itself.

    Raises:
        click.BadParameter: One has no name or lacks a value, or there are two for a name.
    """
    found: dict[str, tuple[str, ...]] = {}
    for value in values:
        name, _, texts = value.partition("=")
        split = tuple(texts.split(","))
        if not name or not all(split):
            raise _refused(value, "is no list of values such as lr=1e-4,3e-4")
        if name in found:
            raise _refused(value, f"is a second list for {name}")
        found[name] = split
    return found


def grid(
    _context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Callback of the option that spans a grid."""
    return parse_grid(value)


def folders(
    _context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[Path, ...]:
    """Callback of options that take a folder and may be given several times."""
    return tuple(map(parse_folder, value))


def parse_overrides(values: tuple[str, ...]) -> dict[str, str]:
    """Read values such as ``lr=3e-4``, each by itself.

    Raises:
        click.BadParameter: One has no name, or there are two for a name.
    """
    found: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise _refused(value, "is no value such as lr=3e-4")
        if name in found:
            raise _refused(value, f"is a second value for {name}")
        found[name] = text
    return check_overrides(found)


def overrides(
    _context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    """Callback of the option that hands values to a restored program."""
    return parse_overrides(value)


def ranges(
    _context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[tuple[int, int], ...]:
    """Callback of options that take ranges of addresses."""
    return tuple(map(parse_range, value))


def subset(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> Subset | None:
    """Callback of options that take a part of the data."""
    return None if value is None else parse_subset(value)
