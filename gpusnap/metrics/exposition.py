"""Figures as Prometheus reads them, written and read by prometheus-client."""

from collections.abc import Callable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gpusnap.metrics.catalogue import METRICS, Metric
from gpusnap.metrics.figures import Figures, Series

_SUFFIXES = {
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
    "counter": ("",),
    "gauge": ("",),
}
_SAMPLES = {
    metric.name + suffix: (metric, suffix)
    for metric in METRICS
    for suffix in _SUFFIXES[metric.kind]
}


def families(figures: Figures) -> Iterator[Family]:
    """Figures in the client's own form, in the order of the catalogue."""
    found = {metric: _family(metric) for metric in METRICS}
    for series, number in figures.numbers.items():
        found[series.metric].add_sample(series.name, series.labels, number)
    return (family for family in found.values() if family.samples)


def _family(metric: Metric) -> Family:
    return Family(metric.name.removesuffix("_total"), metric.text, metric.kind)


class Gathered(Collector):
    """Figures that are gathered each time they are asked for."""

    def __init__(self, gather: Callable[[], Figures]) -> None:
        self._gather = gather

    def collect(self) -> Iterator[Family]:
        """The figures of this moment."""
        return families(self._gather())


def render(figures: Figures) -> str:
    """Figures in Prometheus' text format."""
    return generate_latest(Gathered(lambda: figures)).decode()


def parse(text: str) -> Figures:
    """Read back what :func:`render` wrote; series that the catalogue does not know are left out.

    Raises:
        ValueError: It is no exposition.
    """
    figures = Figures()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            metric, suffix = _SAMPLES.get(sample.name, (None, ""))
            names = (*metric.labels, *(["le"] if suffix == "_bucket" else [])) if metric else ()
            if metric is not None and set(sample.labels) == set(names):
                values = tuple(sample.labels[name] for name in names)
                figures.numbers[Series(metric, suffix, values)] = float(sample.value)
    return figures
