"""``gpusnap bench``: what gpusnap costs on this machine, beside CRIU alone."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from gpusnap.bench import (
    DEFAULT_ROUNDS,
    BenchOptions,
    Native,
    Report,
    Spread,
    run_bench,
)
from gpusnap.cli import _parameters
from gpusnap.cli._format import count, duration
from gpusnap.cli._format import size as size_text
from gpusnap.cli._interrupts import Interrupts
from gpusnap.cli._options import json_option, workers_option
from gpusnap.cli._output import Output
from gpusnap.datapath import Compression
from gpusnap.errors import EXIT_OK
from gpusnap.plugins import Plugins, default_plugins

_KINDS = (
    ("memcpy", "memcpy"),
    ("process_vm_readv", "readv"),
    ("copy with CRC-32", "copy_crc"),
    ("CRC-32 of zlib", "zlib_crc32"),
    ("CRC-32 of gpusnap", "crc32"),
)


@click.command()
@click.option(
    "--size",
    metavar="SIZE",
    default="1GiB",
    callback=_parameters.size,
    envvar="GPUSNAP_SIZE",
    show_envvar=True,
    show_default=True,
    help="Memory of the process that is saved.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=_parameters.WholeNumber(min=1, max=1000),
    default=DEFAULT_ROUNDS,
    envvar="GPUSNAP_ROUNDS",
    show_envvar=True,
    show_default=True,
    help="Checkpoints and restores by each.",
)
@click.option(
    "--folder",
    metavar="FOLDER",
    callback=_parameters.folder,
    envvar="GPUSNAP_FOLDER",
    show_envvar=True,
    help="Where the snapshots go meanwhile.  [default: the folder for temporary files]",
)
@click.option(
    "--compress",
    type=click.Choice([each.value for each in Compression]),
    default=Compression.AUTO.value,
    envvar="GPUSNAP_COMPRESS",
    show_envvar=True,
    show_default=True,
    help="How gpusnap compresses memory.",
)
@workers_option("Threads of gpusnap.")
@json_option
def bench(
    size: int,
    rounds: int,
    folder: Path | None,
    compress: str,
    parallel_workers: int | None,
    output: Output,
) -> int:
    """Measure this machine, gpusnap beside CRIU alone.

    A process of the bench's own is saved and brought back by each in turn, its memory checked
    every time. No other process is touched, and nothing is left.
    """
    options = BenchOptions(
        size=size, rounds=rounds, folder=folder, compress=compress, workers=parallel_workers
    )
    plugins = default_plugins()
    with _heeded_signals(plugins):
        report = run_bench(options, tell=output.note, plugins=plugins)
    if output.json:
        output.document(report)
    else:
        _show(report, output)
    return EXIT_OK


@contextlib.contextmanager
def _heeded_signals(plugins: Plugins) -> Iterator[None]:
    """Let a signal wait or unwind as in the verbs that are measured."""
    interrupts = click.get_current_context().find_object(Interrupts)
    if interrupts is None:
        yield
        return
    plugins.register(interrupts, "cli-interrupts")
    try:
        yield
    finally:
        plugins.unregister(interrupts)


def _show(report: Report, output: Output) -> None:
    machine = report.machine
    output.facts(
        [
            ("processor", f"{machine.processor}, {count(machine.processors, 'CPU')}"),
            ("memory", size_text(machine.memory)),
            ("kernel", machine.kernel),
            ("versions", f"gpusnap {machine.gpusnap_version}, CRIU {machine.criu_version}"),
            ("process", f"{size_text(report.size)}, snapshots on {machine.file_system}"),
        ]
    )
    output.say("")
    _show_rates(report.native, output)
    output.say("")
    _show_rounds(report, output)


def _show_rates(native: Native, output: Output) -> None:
    both = (native.single, native.parallel)
    columns = ["bytes a second", *(f">{count(each.threads, 'thread')}" for each in both)]
    rows = [[label, *(size_text(getattr(each, name)) for each in both)] for label, name in _KINDS]
    ratios = [f"{each.copy_crc_over_readv:.2f}" for each in both]
    output.table(columns, [*rows, ["copy with CRC-32 / process_vm_readv", *ratios]])


def _show_rounds(report: Report, output: Output) -> None:
    columns = ["round", "", ">gpusnap", ">CRIU alone", ">CRIU / gpusnap"]
    rows = []
    for number, each in enumerate(report.rounds, 1):
        for what in ("checkpoint", "restore"):
            ours, theirs = (getattr(trip, f"{what}_us") for trip in (each.gpusnap, each.criu))
            row = [str(number), what, duration(ours), duration(theirs), f"{theirs / ours:.2f}"]
            rows.append(row)
    output.table(columns, rows)
    output.say("")
    output.table(
        ["CRIU / gpusnap", ">minimum", ">median", ">maximum"],
        [
            ["checkpoint", *_figures(report.ratios.checkpoint)],
            ["restore", *_figures(report.ratios.restore)],
        ],
    )


def _figures(spread: Spread) -> list[str]:
    return [f"{each:.2f}" for each in (spread.minimum, spread.median, spread.maximum)]
