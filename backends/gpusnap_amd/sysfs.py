"""Reads sysfs: every answer is bounded, and None where the kernel gives none."""

import re
from pathlib import Path

_LIMIT = 1 << 18
"""Bytes; the largest file of interest, a list of bad pages, stays below."""

_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)
_PROPERTY = re.compile(r"^(\w{1,64}) (\d{1,20})$", re.ASCII | re.MULTILINE)


def read_text(path: Path) -> str | None:
    """Read a small file; None where it is absent, forbidden, no file, or over the limit.

    A GPU outside of the device cgroup makes the kernel answer EPERM, even to root.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT + 1)
    except OSError:
        return None
    return data.decode(errors="replace") if len(data) <= _LIMIT else None


def read_line(path: Path) -> str | None:
    """Read a file as one printable line of at most 200 characters; None where it is empty."""
    text = read_text(path) or ""
    return "".join(letter for letter in text.strip() if letter.isprintable())[:200] or None


def read_integer(path: Path) -> int | None:
    """Read a file that holds one decimal number."""
    text = (read_text(path) or "").strip()
    return int(text) if _INTEGER.fullmatch(text) else None


def parse_properties(text: str) -> dict[str, int]:
    """Collect the lines ``name number`` of a KFD properties file; other lines are passed over."""
    return {name: int(number) for name, number in _PROPERTY.findall(text)}


def names(folder: Path) -> tuple[str, ...]:
    """The sorted names in a folder, none where it cannot be read."""
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError:
        return ()


def numbers(folder: Path) -> tuple[int, ...]:
    """The names in a folder that are numbers, by value."""
    found = (name for name in names(folder) if name.isascii() and name.isdigit())
    return tuple(sorted(int(name) for name in found))
