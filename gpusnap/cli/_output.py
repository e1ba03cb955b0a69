"""The one place that prints: data to standard output, everything else to standard error."""

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

import msgspec
from rich.console import Console
from rich.table import Table

from gpusnap.cli._format import plain
from gpusnap.cli._messages import Failure, Line
from gpusnap.errors import GpusnapError
from gpusnap.types import Finding

_UNWRAPPED = 10_000
"""Columns where nothing is folded: whoever reads or copies from a table wants whole cells."""


class ReaderGoneError(Exception):
    """Nobody reads standard output any more."""


class UnwritableError(GpusnapError):
    """Standard output takes no more, as on a full disk."""


def _text_of(value: object) -> object:
    """The same with every text fit for UTF-8: a command line or a path may hold any bytes."""
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_text_of(key): _text_of(each) for key, each in value.items()}
        case list() | tuple():
            return [_text_of(each) for each in value]
    return value


def encode(value: object) -> str:
    """One line of JSON; paths are strings, sets are sorted."""
    plain_value = _text_of(msgspec.to_builtins(value, enc_hook=str, order="deterministic"))
    return msgspec.json.encode(plain_value).decode()


def _discard(stream: TextIO) -> None:
    """Send what a stream still buffers nowhere, so that closing it cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _write_out(text: str) -> None:
    # A process may be started with its standard output closed: there is no stream then.
    stream = sys.stdout or io.StringIO()
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
        raise ReaderGoneError from None
    except OSError as error:
        _discard(stream)
        raise UnwritableError(f"Standard output cannot be written: {error.strerror}") from None


def _write_error(text: str) -> None:
    # Whoever closed standard error wants no complaints, least of all about that.
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _rendered(table: Table, *, fold: bool) -> str:
    terminal = sys.stdout is not None and sys.stdout.isatty()
    page = io.StringIO()
    console = Console(
        file=page,
        force_terminal=terminal,
        width=None if terminal and fold else _UNWRAPPED,
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.severity}: {finding.text} [{finding.code}]"
        if finding.cure is not None:
            yield f"  cure: {finding.cure}"


class Output:
    """Where a verb's answer goes: text for people, or JSON for machines."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self._lost: ReaderGoneError | UnwritableError | None = None

    def document(self, value: msgspec.Struct) -> None:
        """Print the one JSON document of a verb."""
        _write_out(f"{encode(value)}\n")

    def line(self, value: Line) -> None:
        """Print one JSON line; once one could not be printed, the later ones fail as it did.

        Raises:
            ReaderGoneError: Nobody reads standard output any more.
            UnwritableError: It takes no more.
        """
        if self._lost is not None:
            raise self._lost
        try:
            _write_out(f"{encode(value)}\n")
        except (ReaderGoneError, UnwritableError) as lost:
            self._lost = lost
            raise

    def aside(self, value: Line) -> None:
        """Print one JSON line on standard error, beside a program that has standard output."""
        _write_error(f"{encode(value)}\n")

    def say(self, text: str) -> None:
        """Print one line of an answer."""
        _write_out(f"{plain(text)}\n")

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Print names and values, aligned."""
        found = [(plain(name), plain(value)) for name, value in facts]
        width = max((len(name) for name, _ in found), default=0)
        _write_out("".join(f"{name:<{width}}  {value}\n" for name, value in found))

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, fold: bool = False
    ) -> None:
        """Print rows under a heading.

        Args:
            columns: Their names; one that starts with ``>`` is set right.
            rows: A cell for each column.
            fold: Whether long cells are folded on a terminal; names are better left whole.
        """
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in columns:
            right = column.startswith(">")
            table.add_column(
                column.removeprefix(">"), justify="right" if right else "left", overflow="fold"
            )
        for row in rows:
            table.add_row(*map(plain, row))
        _write_out(_rendered(table, fold=fold))

    def note(self, text: str) -> None:
        """Tell a person something that is no part of the answer; machines do not hear it."""
        if not self.json:
            _write_error(f"{plain(text)}\n")

    def findings(self, findings: Iterable[Finding]) -> None:
        """Print what checks found, where that is the answer."""
        for line in _finding_lines(findings):
            self.say(line)

    def remarks(self, findings: Iterable[Finding]) -> None:
        """Tell a person what checks found, beside the answer."""
        for line in _finding_lines(findings):
            self.note(line)

    def failure(self, failure: Failure) -> None:
        """Say why gpusnap ends as it does."""
        if self.json:
            _write_error(f"{encode(failure)}\n")
            return
        lines = [f"gpusnap: {failure.text}"]
        lines += [f"  cure: {failure.cure}"] if failure.cure is not None else []
        lines += [f"  {detail}" for detail in failure.details]
        _write_error("".join(f"{plain(line)}\n" for line in lines))

    def usage(self, text: str) -> None:
        """Show what can be typed."""
        _write_error(f"{text}\n")

    def traceback(self, error: BaseException) -> None:
        """Show where an error came from, for whoever debugs gpusnap."""
        _write_error("".join(traceback.format_exception(error)))
