"""What happens during an operation, as typed events.

The command line's progress display is a plugin that listens to them like any other.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from gpusnap.types import Device, Finding, Operation


class Phase(StrEnum):
    """The steps of the state machines, named for what they do."""

    PREFLIGHT = "preflight"
    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    SCRUB = "scrub"
    DUMP = "dump"
    COPY = "copy"
    PACK = "pack"
    WRITE = "write"
    DIGEST = "digest"
    PUBLISH = "publish"
    VERIFY = "verify"
    COMPARE = "compare"
    UNPACK = "unpack"
    CRIU_RESTORE = "criu-restore"
    FILL = "fill"
    RESTORE = "restore"
    UNLOCK = "unlock"
    ROLLBACK = "rollback"


class PhaseStarted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A step begins; ``total`` is bytes to move, 0 where unknown."""

    phase: Phase
    total: int = 0


class PhaseProgress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Bytes moved so far in a step."""

    phase: Phase
    done: int
    total: int


class PhaseFinished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A step ended well; a step that fails has no such event."""

    phase: Phase
    microseconds: int


class CriuNotified(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """CRIU reached one of its stages (``pre-dump``, ``post-dump``, ``post-restore``...)."""

    script: str


class Found(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A check found something that does not stop the operation."""

    finding: Finding


class Frozen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The target stopped computing."""

    pids: tuple[int, ...]


class Thawed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The target computes again, or is gone."""

    pids: tuple[int, ...]
    microseconds: int
    """How long it did not run."""


class OperationStarted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An operation begins; nothing has been touched.

    Attributes:
        id: Tells it from every other, and stands in the event of its end.
        pid: The root of its target, for a restore None.
        snapshot: What is to be restored, as the caller named it.
    """

    id: str
    operation: Operation
    pid: int | None = None
    snapshot: str | None = None


class OperationEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An operation did what it was asked for; nothing of it is left to do."""

    id: str
    operation: Operation
    microseconds: int


class OperationFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An operation failed, and its rollback is over.

    Attributes:
        error: Name of the exception's class.
        code: What the command line exits with.
        text: What went wrong, in a sentence.
        cure: What the user can do, or None.
        details: Further lines, such as the decisive one of a log.
    """

    id: str
    operation: Operation
    microseconds: int
    pid: int | None = None
    snapshot: str | None = None
    error: str
    code: int
    text: str
    cure: str | None = None
    details: tuple[str, ...] = ()


class SnapshotPublished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A snapshot is complete and listed; its target may still stand still.

    Attributes:
        id: The snapshot's.
        parent: Id of the snapshot it builds on.
        pids: The processes that were saved, root first.
        read_bytes: What was read out of the target: by gpusnap, and into CRIU's images.
        bytes: Of all its files.
        stored_bytes: Of them, what was written for it, without packs that were its parent's.
        reused_bytes: Memory that its parent had already.
        devices: All devices of the host with their health, as they were then.
    """

    path: str
    id: str
    parent: str | None = None
    pids: tuple[int, ...]
    backend: str | None = None
    read_bytes: int
    bytes: int
    stored_bytes: int
    reused_bytes: int = 0
    devices: tuple[Device, ...] = ()


class SnapshotRestored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The processes of a snapshot run again.

    Attributes:
        id: The snapshot's.
        pids: The processes as they are here, root first.
        bytes: Of all the snapshot's files, which were read.
    """

    path: str
    id: str
    pids: tuple[int, ...]
    backend: str | None = None
    bytes: int


class RunReported(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something happened to a supervised job; see :class:`gpusnap.jobs.reports.Report`.

    Attributes:
        run: Name of the run.
        happening: What kind of thing, in a word such as ``crashed``.
        text: One sentence.
        warning: Whether it is trouble.
    """

    run: str
    happening: str
    text: str
    warning: bool = False
    pid: int | None = None
    snapshot: str | None = None
    exit_code: int | None = None


Event: TypeAlias = (
    PhaseStarted
    | PhaseProgress
    | PhaseFinished
    | CriuNotified
    | Found
    | Frozen
    | Thawed
    | OperationStarted
    | OperationEnded
    | OperationFailed
    | SnapshotPublished
    | SnapshotRestored
    | RunReported
)
