"""The JSON that machines read: documents, and lines told apart by ``message_type``."""

from pathlib import Path
from typing import Literal

import msgspec

from gpusnap.errors import GpusnapError
from gpusnap.events import Phase
from gpusnap.repository import PhaseTime, Snapshot
from gpusnap.restore import RestorePlan
from gpusnap.types import BackendInfo, Device, DeviceProcess, Engine, Finding, Probe


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="message_type"):
    """Base of all lines; ``message_type`` stands first in each."""


class PhaseLine(Line, frozen=True, kw_only=True, tag="phase"):
    """A step of an operation started or finished."""

    phase: Phase
    state: Literal["started", "finished"]
    microseconds: int | None = None


class ProgressLine(Line, frozen=True, kw_only=True, tag="progress"):
    """Bytes moved so far in a step; a total of 0 means unknown."""

    phase: Phase
    bytes_done: int
    bytes_total: int


class FrozenLine(Line, frozen=True, kw_only=True, tag="frozen"):
    """The target stopped computing."""

    pids: tuple[int, ...]


class ThawedLine(Line, frozen=True, kw_only=True, tag="thawed"):
    """The target computes again, or is gone, after so long a stop."""

    pids: tuple[int, ...]
    frozen_us: int


class FindingLine(Line, frozen=True, kw_only=True, tag="finding"):
    """A check found something that does not stop the operation."""

    finding: Finding


class StepLine(Line, frozen=True, kw_only=True, tag="step"):
    """One step of the demonstration, in words."""

    text: str
    microseconds: int


class SummaryLine(Line, frozen=True, kw_only=True, tag="summary"):
    """The last line of a verb that reports progress.

    Attributes:
        microseconds: How long the whole operation took.
        frozen_us: How long the target did not run; None where it was not stopped, or where it
            still is.
        warnings: What checks found that did not stop the operation.
    """

    verb: str
    microseconds: int
    frozen_us: int | None = None
    warnings: tuple[Finding, ...] = ()
    result: msgspec.Struct


class Failure(Line, frozen=True, kw_only=True, tag="exit_error"):
    """Why gpusnap ends with ``code``; the last line on standard error."""

    code: int
    text: str
    cure: str | None = None
    details: tuple[str, ...] = ()


class SnapshotRow(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot as listings show it.

    Attributes:
        bytes: Of all its files.
        stored_bytes: Of them, without packs that were its parent's.
        parent: Id of the snapshot that it builds on.
    """

    name: str
    path: str
    id: str
    created: str
    root_pid: int
    command: tuple[str, ...]
    processes: int
    backend: str | None
    engine: Engine
    bytes: int
    stored_bytes: int
    parent: str | None
    frozen_us: int
    left_running: bool
    tags: tuple[str, ...]


def snapshot_row(snapshot: Snapshot) -> SnapshotRow:
    """What a listing shows of a snapshot."""
    manifest = snapshot.manifest
    return SnapshotRow(
        name=snapshot.name,
        path=str(snapshot.path),
        id=manifest.id,
        created=manifest.created,
        root_pid=manifest.target.root.pid,
        command=manifest.target.root.command,
        processes=len(manifest.target.processes),
        backend=manifest.backend,
        engine=manifest.engine,
        bytes=snapshot.size,
        stored_bytes=snapshot.stored_size,
        parent=manifest.parent,
        frozen_us=manifest.frozen_us,
        left_running=manifest.left_running,
        tags=manifest.tags,
    )


class DamagedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that cannot be opened."""

    name: str
    path: str
    reason: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``list``."""

    repository: str
    snapshots: tuple[SnapshotRow, ...] = ()
    damaged: tuple[DamagedRow, ...] = ()


class Checkpointed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``checkpoint``."""

    snapshot: SnapshotRow
    target_runs: bool
    phases: tuple[PhaseTime, ...]


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``verify``: ``bytes`` were read of ``bytes_total``."""

    path: Path
    intact: bool
    files: int
    bytes: int
    bytes_total: int
    bytes_per_second: int
    findings: tuple[Finding, ...]


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot that was removed."""

    path: str
    bytes_freed: int


class Removals(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``rm``."""

    removed: tuple[Removal, ...]


class KeptRow(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that ``prune`` keeps, and the rules that want it."""

    snapshot: SnapshotRow
    reasons: tuple[str, ...]


class RemovedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that ``prune`` removed, or in a dry run would remove."""

    snapshot: SnapshotRow
    bytes_freed: int


class RefusedRow(msgspec.Struct, frozen=True, kw_only=True):
    """What ``prune`` could not remove."""

    path: str
    reason: str


class Pruning(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``prune``."""

    repository: str
    dry_run: bool
    kept: tuple[KeptRow, ...]
    removed: tuple[RemovedRow, ...]
    refused: tuple[RefusedRow, ...]
    damaged: tuple[DamagedRow, ...]
    bytes_freed: int


class DeviceList(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``devices``."""

    devices: tuple[Device, ...]


class MetricsRow(msgspec.Struct, frozen=True, kw_only=True):
    """One time series and its present value."""

    name: str
    labels: dict[str, str]
    value: float


class MetricsList(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``metrics``."""

    samples: tuple[MetricsRow, ...]


class SuspendedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target whose device state lies in host memory."""

    pids: tuple[int, ...]
    names: tuple[str, ...]
    backend: str | None


class InterruptedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A living target that a killed gpusnap left as it was in the middle of a ``task``."""

    task: str
    pids: tuple[int, ...]
    names: tuple[str, ...]
    backend: str | None


class ProcessList(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``ps``."""

    processes: tuple[DeviceProcess, ...]
    suspended: tuple[SuspendedTarget, ...]
    interrupted: tuple[InterruptedTarget, ...]


class BackendRow(msgspec.Struct, frozen=True, kw_only=True):
    """A backend that loaded: what it says of itself and of this machine."""

    info: BackendInfo
    probe: Probe


class BrokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin that could not be used."""

    name: str
    reason: str


class BackendList(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``backends``."""

    backends: tuple[BackendRow, ...]
    broken: tuple[BrokenRow, ...]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``check``; ``restore`` is what ``--restore`` asked about."""

    pid: int | None
    findings: tuple[Finding, ...]
    backends: tuple[BackendRow, ...]
    restore: RestorePlan | None = None


class RecoveryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One interrupted operation and what became of it.

    ``task`` is None where unknown; without ``pids`` it is about the whole machine.
    """

    task: str | None
    pids: tuple[int, ...]
    outcome: str
    failed: bool


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``recover``."""

    recovered: tuple[RecoveryRow, ...]


class DemoVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``demo``."""

    identical: bool
    backend: str
    steps: int
    interrupted_at: int
    snapshot: SnapshotRow
    first_difference: str | None = None


def failure_of(error: GpusnapError) -> Failure:
    """The last line for an error that was raised on purpose."""
    return Failure(code=error.exit_code, text=error.text, cure=error.cure, details=error.details)
