"""The figures behind the metrics: numbers that are added up, and those that are only set."""

from collections.abc import Iterable, Mapping
from importlib.metadata import version

import msgspec

from gpusnap.events import (
    Found,
    OperationEnded,
    OperationFailed,
    PhaseFinished,
    RunReported,
    SnapshotPublished,
    SnapshotRestored,
    Thawed,
)
from gpusnap.jobs.reports import Happening
from gpusnap.metrics import catalogue as c
from gpusnap.metrics.outlet import Batch, Heard
from gpusnap.types import Device, Operation

INFINITE = "+Inf"
"""The label ``le`` of a histogram's last bucket."""


class Series(msgspec.Struct, frozen=True):
    """One time series: a metric, what its sample adds to the name, and its labels' values.

    For a bucket the last of the values is the label ``le``.
    """

    metric: c.Metric
    suffix: str
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the sample."""
        return self.metric.name + self.suffix

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        names = (*self.metric.labels, "le") if self.suffix == "_bucket" else self.metric.labels
        return dict(zip(names, self.values, strict=True))


class Figures:
    """A number for each time series, in the order in which they came up."""

    def __init__(self) -> None:
        self.numbers: dict[Series, float] = {}

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def add(self, metric: c.Metric, number: float, *values: str, suffix: str = "") -> None:
        """Count something."""
        series = Series(metric, suffix, values)
        self.numbers[series] = self.numbers.get(series, 0.0) + number

    def set(self, metric: c.Metric, number: float | None, *values: str) -> None:
        """Note the present value; None is none."""
        if number is not None:
            self.numbers[Series(metric, "", values)] = float(number)

    def observe(self, metric: c.Metric, seconds: float, *values: str) -> None:
        """Count a duration in a histogram or a summary."""
        for bound in (*metric.buckets, float("inf")) if metric.kind == "histogram" else ():
            le = INFINITE if bound == float("inf") else str(bound)
            self.add(metric, float(seconds <= bound), *values, le, suffix="_bucket")
        self.add(metric, seconds, *values, suffix="_sum")
        self.add(metric, 1.0, *values, suffix="_count")

    def merge(self, later: "Figures") -> None:
        """Take in what came later: counters add up, gauges and all of the devices are replaced."""
        if any(series.metric is c.DEVICES_READ for series in later.numbers):
            self.numbers = {
                series: number
                for series, number in self.numbers.items()
                if series.metric not in c.DEVICE_METRICS
            }
        for series, number in later.numbers.items():
            is_set = series.metric.kind == "gauge" or series.metric in c.DEVICE_METRICS
            self.numbers[series] = number if is_set else self.numbers.get(series, 0.0) + number


def first_figures() -> Figures:
    """Where counting begins: outcomes at zero, so that the first one is seen as an increase."""
    figures = Figures()
    for operation in Operation:
        for outcome in ("succeeded", "failed"):
            figures.add(c.OPERATIONS, 0.0, operation, outcome)
    for kind in ("full", "incremental"):
        figures.add(c.SNAPSHOTS, 0.0, kind)
    for happening in Happening:
        figures.add(c.RUN_EVENTS, 0.0, happening)
    return figures


def figures_of(batch: Batch) -> Figures:
    """What a batch of events adds."""
    figures = Figures()
    operation = batch.start.operation if batch.start else None
    for heard in batch.heard:
        _count(figures, heard)
        if operation is not None:
            _count_times(figures, heard, operation)
    if figures:
        figures.set(c.BUILD_INFO, 1, version("gpusnap"))
    return figures


def _count(figures: Figures, heard: Heard) -> None:
    match heard.event:
        case OperationEnded(operation=operation):
            figures.add(c.OPERATIONS, 1, operation, "succeeded")
        case OperationFailed(operation=operation, code=code, error=error):
            figures.add(c.OPERATIONS, 1, operation, "failed")
            figures.add(c.FAILURES, 1, operation, str(code), error)
        case Found(finding=finding):
            figures.add(c.FINDINGS, 1, finding.code, finding.severity)
        case RunReported(happening=happening):
            figures.add(c.RUN_EVENTS, 1, happening)
        case SnapshotPublished():
            _count_snapshot(figures, heard.event, heard.time.timestamp())
        case SnapshotRestored():
            figures.add(c.RESTORED_BYTES, heard.event.bytes)


def _count_times(figures: Figures, heard: Heard, operation: Operation) -> None:
    match heard.event:
        case OperationEnded(microseconds=microseconds):
            figures.observe(c.OPERATION_SECONDS, microseconds / 1e6, operation)
        case PhaseFinished(phase=phase, microseconds=microseconds):
            figures.observe(c.PHASE_SECONDS, microseconds / 1e6, operation, phase)
        case Thawed(microseconds=microseconds):
            figures.observe(c.FROZEN_SECONDS, microseconds / 1e6, operation)


def _count_snapshot(figures: Figures, event: SnapshotPublished, now: float) -> None:
    figures.add(c.SNAPSHOTS, 1, "full" if event.parent is None else "incremental")
    figures.add(c.READ_BYTES, event.read_bytes)
    figures.add(c.STORED_BYTES, event.stored_bytes)
    figures.add(c.REUSED_BYTES, event.reused_bytes)
    figures.set(c.LAST_SNAPSHOT, now)
    figures.set(c.LAST_SNAPSHOT_BYTES, event.stored_bytes)
    if event.devices:
        figures.merge(figures_of_devices(event.devices, now))


def figures_of_devices(devices: Iterable[Device], now: float) -> Figures:
    """What devices say of themselves.

    Args:
        devices: The devices.
        now: When they were read, in seconds since 1970.
    """
    figures = Figures()
    figures.set(c.DEVICES_READ, now)
    for device in devices:
        _describe(figures, device)
    return figures


def _describe(figures: Figures, device: Device) -> None:
    uuid, health, ecc = device.uuid, device.health, device.health.ecc
    what = (str(device.index), device.vendor, device.model, device.pci, device.driver_version)
    figures.set(c.DEVICE_INFO, 1, uuid, *(value or "" for value in what))
    plain: Mapping[c.Metric, float | None] = {
        c.DEVICE_MEMORY: device.memory_total,
        c.DEVICE_FREE: device.memory_free,
        c.DEVICE_TEMPERATURE: health.temperature_celsius,
        c.DEVICE_ECC_ENABLED: health.ecc_enabled,
        c.DEVICE_REMAP_PENDING: health.remap_pending,
        c.DEVICE_REMAP_FAILED: health.remap_failed,
        c.DEVICE_BAD_PAGES: health.bad_pages,
    }
    for metric, number in plain.items():
        figures.set(metric, number, uuid)
    figures.set(c.DEVICE_ECC_ERRORS, ecc.volatile_corrected, uuid, "corrected", "driver_load")
    figures.set(c.DEVICE_ECC_ERRORS, ecc.volatile_uncorrected, uuid, "uncorrected", "driver_load")
    figures.set(c.DEVICE_ECC_ERRORS, ecc.aggregate_corrected, uuid, "corrected", "life")
    figures.set(c.DEVICE_ECC_ERRORS, ecc.aggregate_uncorrected, uuid, "uncorrected", "life")
    figures.set(c.DEVICE_REMAPPED_ROWS, health.remapped_rows_corrected, uuid, "corrected")
    figures.set(c.DEVICE_REMAPPED_ROWS, health.remapped_rows_uncorrected, uuid, "uncorrected")
