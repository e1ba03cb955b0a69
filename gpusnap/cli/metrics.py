"""``gpusnap metrics``: the figures for Prometheus, with the devices' health of this moment."""

import time
from collections.abc import Iterator

import click

from gpusnap.checks import devices
from gpusnap.cli._failures import refused_path
from gpusnap.cli._messages import MetricsList, MetricsRow
from gpusnap.cli._options import flag, json_option
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK
from gpusnap.metrics.figures import Figures, figures_of_devices
from gpusnap.metrics.plugin import require_client
from gpusnap.metrics.textfile import add, read, textfile


@click.command()
@flag("--update", "update", "Write the devices' health into the textfile too, as for a timer.")
@json_option
def metrics(update: bool, output: Output) -> int:
    """Print metrics as Prometheus reads them.

    The devices' health is that of this moment. What operations did is counted where
    GPUSNAP_METRICS_TEXTFILE or GPUSNAP_METRICS_PORT is set.
    """
    require_client()
    path = textfile()
    health = figures_of_devices(devices(), time.time())
    if update:
        try:
            add(path, health)
        except OSError as error:
            text = f"The metrics file {path} cannot be written"
            cure = "Name a file that you may write in GPUSNAP_METRICS_TEXTFILE"
            raise refused_path(text, error, cure) from error
    figures = read(path)
    figures.merge(health)
    _show(figures, output)
    return EXIT_OK


def _show(figures: Figures, output: Output) -> None:
    from gpusnap.metrics.exposition import render  # noqa: PLC0415 - prometheus-client is optional

    if output.json:
        output.document(MetricsList(samples=tuple(_rows(figures))))
    else:
        for line in render(figures).splitlines():
            output.say(line)


def _rows(figures: Figures) -> Iterator[MetricsRow]:
    for series, number in figures.numbers.items():
        yield MetricsRow(name=series.name, labels=series.labels, value=number)
