"""Figures and foreign text as people read them."""

from collections.abc import Iterable

_UNITS = ("kB", "MB", "GB", "TB", "PB")


def plain(text: str) -> str:
    """Text that cannot steer a terminal: what cannot be printed is shown as an escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def size(count: int | None) -> str:
    """Bytes with a decimal unit; ``-`` where unknown."""
    if count is None:
        return "-"
    value = float(count)
    unit = "B"
    for larger in _UNITS:
        if value < 999.5:  # noqa: PLR2004 - three digits
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.3g} {unit}"


def duration(microseconds: int) -> str:
    """A duration to three digits."""
    if microseconds < 1000:  # noqa: PLR2004 - a millisecond
        return f"{microseconds} us"
    if microseconds < 999_500:  # noqa: PLR2004 - a second
        return f"{microseconds / 1000:.3g} ms"
    seconds = microseconds / 1e6
    if seconds < 99.95:  # noqa: PLR2004 - three digits
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def instant(timestamp: str) -> str:
    """An RFC 3339 instant in UTC, to the second."""
    return f"{timestamp[:19]}Z"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun: ``1 file``, ``2 files``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(values: Iterable[object]) -> str:
    """Values behind one another; ``-`` where there is none."""
    return ", ".join(map(str, values)) or "-"


def yes_no(value: object) -> str:
    """A truth in a word."""
    return "yes" if value else "no"
