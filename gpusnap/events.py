"""What happens during an operation, as typed events.

The command line's progress display is a plugin that listens to them like any other.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from gpusnap.types import Finding


class Phase(StrEnum):
    """The steps of the state machines, named for what they do."""

    PREFLIGHT = "preflight"
    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    SCRUB = "scrub"
    DUMP = "dump"
    COPY = "copy"
    WRITE = "write"
    DIGEST = "digest"
    PUBLISH = "publish"
    VERIFY = "verify"
    COMPARE = "compare"
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


Event: TypeAlias = (
    PhaseStarted | PhaseProgress | PhaseFinished | CriuNotified | Found | Frozen | Thawed
)
