"""The page about metrics names every one, and its examples name none that does not exist."""

import re
from importlib.metadata import entry_points
from pathlib import Path

from gpusnap.metrics.catalogue import METRICS
from gpusnap.metrics.outlet import Outlet

PAGE = (Path(__file__).parents[2] / "docs/how-to/metrics.md").read_text()


def test_the_table_is_the_catalogue() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `gpusnap_")]
    expected = [
        f"| `{metric.name}` | {metric.kind} "
        f"| {', '.join(f'`{label}`' for label in metric.labels) or '-'} | {metric.text} |"
        for metric in METRICS
    ]
    assert rows == expected


def test_examples_name_metrics_that_exist() -> None:
    known = {metric.name for metric in METRICS}
    known |= {
        f"{metric.name}_{part}"
        for metric in METRICS
        for part in {"histogram": ("bucket", "sum", "count"), "summary": ("sum", "count")}.get(
            metric.kind, ()
        )
    }
    named = set(re.findall(r"\bgpusnap_[a-z_]+[a-z]\b", PAGE)) - {"gpusnap_device"}
    assert named - known == set()
    assert len(named) > len(METRICS)


def test_the_plugins_are_registered_as_anybody_s() -> None:
    points = {point.name: point.load() for point in entry_points(group="gpusnap.plugins")}
    found = {name: plugin for name, plugin in points.items() if isinstance(plugin, Outlet)}
    assert set(found) == {"event-log", "metrics", "notify"}
    for plugin in found.values():
        for variable in plugin.variables:
            assert f"`{variable}`" in PAGE
