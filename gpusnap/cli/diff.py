"""``gpusnap diff``: what changed between two snapshots."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from gpusnap.cli import _parameters
from gpusnap.cli._format import count, size
from gpusnap.cli._options import json_option, repo_option, workers_option
from gpusnap.cli._output import Output
from gpusnap.cli._watch import watched
from gpusnap.comparison import Comparison, ImageChange, ProcessChange, compare_snapshots
from gpusnap.datapath import MemoryChange
from gpusnap.errors import EXIT_OK
from gpusnap.events import Phase
from gpusnap.phases import Phases
from gpusnap.repository import resolve

_COLUMNS = (">PID", "ADDRESS", "KIND", ">LENGTH", ">EQUAL", ">CHANGED", ">ONLY A", ">ONLY B")
_SHOWN = 20
"""Rows of a list that are shown to people; JSON has all."""


@click.command()
@click.argument("a", metavar="A", callback=_parameters.name)
@click.argument("b", metavar="B", callback=_parameters.name)
@repo_option
@workers_option("Threads that read and compare memory.")
@json_option
def diff(a: str, b: str, repo: Path | None, parallel_workers: int | None, output: Output) -> int:
    """Show what changed between two snapshots.

    That is processes, options, devices, images, and memory to the page: bytes in pages that are
    equal, changed, or only in one of the two, for each process and range of addresses. The exit
    code is 0 whether they differ or not.

    A and B are each a path with a slash, a name in the repository, the beginning of one, or
    latest.
    """
    first, second = resolve(a, repo), resolve(b, repo)
    with watched(output) as watch, Phases(watch.plugins.emit).step(Phase.COMPARE) as progress:
        found = compare_snapshots(first, second, progress, workers=parallel_workers)
    if output.json:
        watch.summary("diff", found)
    else:
        _show(found, output)
    return EXIT_OK


def _show(found: Comparison, output: Output) -> None:
    total = found.total
    output.facts(
        [
            ("A", found.a),
            ("B", found.b),
            ("memory", f"{size(total.equal)} equal, {size(total.changed)} changed"),
            ("", f"{size(total.only_a)} only in A, {size(total.only_b)} only in B"),
            ("processes", _number(len(found.processes))),
            *(("", _process(each)) for each in found.processes),
            ("facts", _number(len(found.fields))),
            *(("", f"{each.field}: {each.a or '-'} to {each.b or '-'}") for each in found.fields),
            ("images", _number(len(found.images))),
            *(("", words) for words in _images(found.images)),
        ]
    )
    _show_memory([each for each in found.memory if each.different], output)


def _number(different: int) -> str:
    if different == 0:
        return "the same"
    return "1 differs" if different == 1 else f"{different} differ"


def _process(change: ProcessChange) -> str:
    match change.a, change.b:
        case tuple() as gone, None:
            return f"{change.pid} {shlex.join(gone)} is only in A"
        case None, tuple() as come:
            return f"{change.pid} {shlex.join(come)} is only in B"
    return f"{change.pid} {shlex.join(change.a or ())} became {shlex.join(change.b or ())}"


def _images(images: tuple[ImageChange, ...]) -> Iterator[str]:
    for each in images[:_SHOWN]:
        yield f"{each.path}: {size(each.a)} to {size(each.b)}"
    if len(images) > _SHOWN:
        yield f"and {len(images) - _SHOWN} more"


def _show_memory(different: list[MemoryChange], output: Output) -> None:
    if not different:
        return
    output.table(_COLUMNS, map(_row, different[:_SHOWN]))
    if len(different) > _SHOWN:
        output.say(f"and {count(len(different) - _SHOWN, 'more range')} with changes")


def _row(change: MemoryChange) -> tuple[str, ...]:
    return (
        "-" if change.pid is None else str(change.pid),
        f"{change.image}+{change.start:#x}" if change.image else f"{change.start:#x}",
        change.kind.value,
        size(change.length),
        size(change.equal),
        size(change.changed),
        size(change.only_a),
        size(change.only_b),
    )
