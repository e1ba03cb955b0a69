"""What the lines of a vendor's plugin in CRIU's log mean, by the words of its backend."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpusnap.criu.log import read_lines
from gpusnap.errors import CriuError
from gpusnap.types import LogMeaning


def plugin_failure(
    log: Path, meanings: Sequence[LogMeaning], *, fatal: bool = False
) -> CriuError | None:
    """The error that a line of the plugin stands for; None where no line says anything.

    Args:
        log: CRIU's log, which may not exist.
        meanings: What is looked for, the most telling first.
        fatal: Whether CRIU said success, so that only what voids it counts.
    """
    wanted = [each for each in meanings if not each.aside and (each.fatal or not fatal)]
    for meaning, line in _found(log, wanted):
        return CriuError(meaning.text, cure=meaning.cure, details=[line])
    return None


def asides(log: Path, meanings: Sequence[LogMeaning]) -> tuple[str, ...]:
    """What is to be told beside what made CRIU fail."""
    wanted = [each for each in meanings if each.aside]
    return tuple(meaning.text for meaning, _ in _found(log, wanted))


def _found(log: Path, meanings: Sequence[LogMeaning]) -> Iterator[tuple[LogMeaning, str]]:
    lines = read_lines(log) if meanings else []
    for meaning in meanings:
        line = _first(meaning.words, lines)
        if line is not None and (meaning.unless is None or _first(meaning.unless, lines) is None):
            yield meaning, line.strip()


def _first(words: str, lines: Sequence[str]) -> str | None:
    pattern = re.compile(words)
    return next(filter(pattern.search, lines), None)
