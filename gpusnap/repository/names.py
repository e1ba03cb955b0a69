"""Which names a snapshot may have, and names for those that were given none."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from gpusnap.errors import UsageError
from gpusnap.repository.layout import RESERVED_NAMES
from gpusnap.repository.storage import printable

MAX_BYTES = 200
"""Room below the kernel's 255 for what gpusnap puts around a name while it works."""


class NameTakenError(UsageError):
    """A snapshot of that name exists."""


_RULES: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda name: not name, "is empty"),
    (lambda name: "/" in name, "holds a slash"),
    (lambda name: name.startswith("."), "starts with a dot"),
    (lambda name: not name.isprintable(), "holds a character that cannot be printed"),
    (lambda name: name != name.strip(), "starts or ends with a space"),
    (lambda name: name in RESERVED_NAMES, "is reserved"),
    (lambda name: len(name.encode(errors="replace")) > MAX_BYTES, f"exceeds {MAX_BYTES} bytes"),
)


def problem(name: str) -> str | None:
    """What forbids a name, as the end of a sentence, or None."""
    return next((words for forbidden, words in _RULES if forbidden(name)), None)


def check(name: str) -> str:
    """The name itself.

    Raises:
        UsageError: No snapshot may have it.
    """
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is not a snapshot name", cure="Give text")
    words = problem(name)
    if words:
        raise UsageError(
            f"The snapshot name '{printable(name)[:MAX_BYTES]}' {words}",
            cure="Use letters, digits, '.', '_' and '-', starting with a letter or digit",
        )
    return name


def taken(destination: Path) -> NameTakenError:
    """The error for a name that is in use."""
    return NameTakenError(
        f"Snapshot {printable(destination.name)} exists in {printable(destination.parent)}",
        cure=f"Choose another name, or remove it: gpusnap rm {printable(destination)}",
    )


def check_free(destination: Path) -> None:
    """Look whether anything has a name.

    Raises:
        NameTakenError: Something has.
        OSError: The repository cannot be looked into.
    """
    with suppress(FileNotFoundError):
        destination.lstat()
        raise taken(destination)


def generated(process_name: str, now: datetime | None = None) -> Iterator[str]:
    """Names for a snapshot of a process, in the order to try them: ``train-20260131T120000Z``."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", process_name).strip(".-")[:100] or "process"
    base = f"{word}-{now or datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    yield base
    yield from (f"{base}-{number}" for number in itertools.count(2))
