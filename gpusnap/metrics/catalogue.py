"""Every metric by name, in the order of the exposition: base units, as Prometheus asks for."""

from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "summary"]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric.

    Attributes:
        labels: Names of its labels.
        buckets: Upper bounds of a histogram's buckets, without the infinite one.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SHORT = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LONG = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind="counter", text=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind="gauge", text=text, labels=labels)


BUILD_INFO = _gauge("gpusnap_build_info", "Always 1, with the version of gpusnap.", "version")

OPERATIONS = _counter(
    "gpusnap_operations_total",
    "Operations that are over; outcome is succeeded or failed.",
    "operation",
    "outcome",
)
FAILURES = _counter(
    "gpusnap_failures_total",
    "Operations that failed, by exit code and class of the error.",
    "operation",
    "code",
    "error",
)
OPERATION_SECONDS = Metric(
    name="gpusnap_operation_seconds",
    kind="histogram",
    text="How long operations took that succeeded.",
    labels=("operation",),
    buckets=_LONG,
)
PHASE_SECONDS = Metric(
    name="gpusnap_phase_seconds",
    kind="summary",
    text="How long the phases of operations took, those that ended well.",
    labels=("operation", "phase"),
)
FROZEN_SECONDS = Metric(
    name="gpusnap_frozen_seconds",
    kind="histogram",
    text="How long targets did not run, until they ran again or were gone.",
    labels=("operation",),
    buckets=_SHORT,
)
FINDINGS = _counter(
    "gpusnap_findings_total",
    "What checks found that did not stop an operation.",
    "code",
    "severity",
)

RUN_EVENTS = _counter(
    "gpusnap_run_events_total",
    "What happened to supervised jobs: started, saved, crashed, restored, fault and so on.",
    "event",
)

SNAPSHOTS = _counter(
    "gpusnap_snapshots_total",
    "Snapshots that were published; kind is full, or incremental for one with a parent.",
    "kind",
)
READ_BYTES = _counter(
    "gpusnap_snapshot_read_bytes_total", "Memory that was read out of targets for snapshots."
)
STORED_BYTES = _counter(
    "gpusnap_snapshot_stored_bytes_total", "What was written to disk for snapshots."
)
REUSED_BYTES = _counter(
    "gpusnap_snapshot_reused_bytes_total", "Memory that the parents of snapshots had already."
)
RESTORED_BYTES = _counter(
    "gpusnap_restore_read_bytes_total", "What was read of snapshots that were restored."
)
LAST_SNAPSHOT = _gauge(
    "gpusnap_last_snapshot_timestamp_seconds",
    "When the last snapshot was published, in seconds since 1970.",
)
LAST_SNAPSHOT_BYTES = _gauge(
    "gpusnap_last_snapshot_stored_bytes", "What was written to disk for the last snapshot."
)

DEVICES_READ = _gauge(
    "gpusnap_devices_read_timestamp_seconds",
    "When the devices were last read, in seconds since 1970.",
)
DEVICE_INFO = _gauge(
    "gpusnap_device_info",
    "Always 1, with what a device is.",
    "uuid",
    "index",
    "vendor",
    "model",
    "pci",
    "driver_version",
)
DEVICE_MEMORY = _gauge("gpusnap_device_memory_bytes", "Memory of a device.", "uuid")
DEVICE_FREE = _gauge("gpusnap_device_memory_free_bytes", "Free memory of a device.", "uuid")
DEVICE_TEMPERATURE = _gauge(
    "gpusnap_device_temperature_celsius", "Temperature of a device.", "uuid"
)
DEVICE_ECC_ENABLED = _gauge(
    "gpusnap_device_ecc_enabled", "1 where memory errors of a device are corrected.", "uuid"
)
DEVICE_ECC_ERRORS = _counter(
    "gpusnap_device_ecc_errors_total",
    "Memory errors of a device; since is driver_load or life, kind corrected or uncorrected.",
    "uuid",
    "kind",
    "since",
)
DEVICE_REMAPPED_ROWS = _counter(
    "gpusnap_device_remapped_rows_total",
    "Memory rows of a device that were replaced; kind is that of the error.",
    "uuid",
    "kind",
)
DEVICE_REMAP_PENDING = _gauge(
    "gpusnap_device_remap_pending", "1 where a row waits for a reset of the device.", "uuid"
)
DEVICE_REMAP_FAILED = _gauge(
    "gpusnap_device_remap_failed", "1 where a row could not be replaced.", "uuid"
)
DEVICE_BAD_PAGES = _gauge(
    "gpusnap_device_bad_pages", "Memory pages of a device that are out of use.", "uuid"
)

DEVICE_METRICS = (
    DEVICES_READ,
    DEVICE_INFO,
    DEVICE_MEMORY,
    DEVICE_FREE,
    DEVICE_TEMPERATURE,
    DEVICE_ECC_ENABLED,
    DEVICE_ECC_ERRORS,
    DEVICE_REMAPPED_ROWS,
    DEVICE_REMAP_PENDING,
    DEVICE_REMAP_FAILED,
    DEVICE_BAD_PAGES,
)
"""What is told of devices as they were last read; what a driver does not report is left out."""

METRICS = (
    BUILD_INFO,
    OPERATIONS,
    FAILURES,
    OPERATION_SECONDS,
    PHASE_SECONDS,
    FROZEN_SECONDS,
    FINDINGS,
    RUN_EVENTS,
    SNAPSHOTS,
    READ_BYTES,
    STORED_BYTES,
    REUSED_BYTES,
    RESTORED_BYTES,
    LAST_SNAPSHOT,
    LAST_SNAPSHOT_BYTES,
    *DEVICE_METRICS,
)
