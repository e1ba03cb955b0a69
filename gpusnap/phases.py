"""Runs the steps of an operation: timed, announced, written to the journal."""

import contextlib
import signal
import time
import uuid
from collections.abc import Callable, Iterator

from gpusnap.errors import GpusnapError
from gpusnap.events import (
    Event,
    Frozen,
    OperationEnded,
    OperationFailed,
    OperationStarted,
    Phase,
    PhaseFinished,
    PhaseProgress,
    PhaseStarted,
    Thawed,
)
from gpusnap.hookspecs import Progress
from gpusnap.journal import Journal
from gpusnap.repository import PhaseTime
from gpusnap.types import Operation


def now_us() -> int:
    """A monotonic clock in microseconds."""
    return time.monotonic_ns() // 1000


@contextlib.contextmanager
def operation(
    emit: Callable[[Event], None],
    kind: Operation,
    *,
    pid: int | None = None,
    snapshot: str | None = None,
) -> Iterator[None]:
    """Announce that an operation begins, and how it ended once the block is left.

    Args:
        emit: Tells the plugins.
        kind: Which operation.
        pid: The root of its target.
        snapshot: What is to be restored.
    """
    identifier, begin = uuid.uuid4().hex, now_us()
    emit(OperationStarted(id=identifier, operation=kind, pid=pid, snapshot=snapshot))
    try:
        yield
    except BaseException as error:
        known = error if isinstance(error, GpusnapError) else None
        emit(
            OperationFailed(
                id=identifier,
                operation=kind,
                microseconds=now_us() - begin,
                pid=pid,
                snapshot=snapshot,
                error=type(error).__name__,
                code=_exit_code(error),
                text=str(error) or type(error).__name__,
                cure=known.cure if known else None,
                details=known.details if known else (),
            )
        )
        raise
    emit(OperationEnded(id=identifier, operation=kind, microseconds=now_us() - begin))


def _exit_code(error: BaseException) -> int:
    """What the command line exits with; an interrupt may carry the number of its signal."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + int(getattr(error, "number", signal.SIGINT))
    return error.exit_code if isinstance(error, GpusnapError) else GpusnapError.exit_code


_WAY_BACK = frozenset({Phase.RESTORE, Phase.UNLOCK, Phase.ROLLBACK})


class Phases:
    """Times the steps of one operation and the time its target does not run."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._times: list[PhaseTime] = []
        self._frozen_at: int | None = None
        self.journal: Journal | None = None
        self._frozen_us = 0

    @property
    def times(self) -> tuple[PhaseTime, ...]:
        """The steps that ended, in order."""
        return tuple(self._times)

    @contextlib.contextmanager
    def step(self, phase: Phase, total: int = 0) -> Iterator[Progress]:
        """Run one step; what is yielded reports its progress in bytes."""
        if self.journal is not None:
            self._note(self.journal, phase)
        self._emit(PhaseStarted(phase=phase, total=total))
        begin = now_us()
        yield lambda done, of: self._emit(PhaseProgress(phase=phase, done=done, total=of))
        took = now_us() - begin
        self._times.append(PhaseTime(phase=phase, microseconds=took))
        self._emit(PhaseFinished(phase=phase, microseconds=took))

    @staticmethod
    def _note(journal: Journal, phase: Phase) -> None:
        try:
            journal.update(phase=phase)
        except GpusnapError:
            # Where the target is given back, a note that cannot be written must not stop that.
            if phase not in _WAY_BACK:
                raise

    def freeze(self, pids: tuple[int, ...]) -> None:
        """Note that the target stopped; a moment between two dumps in which it runs counts too."""
        if self._frozen_at is not None:
            return
        self._frozen_at = now_us()
        self._emit(Frozen(pids=pids))

    def thaw(self, pids: tuple[int, ...]) -> None:
        """Note that the target runs again or is gone; does nothing if it was not frozen."""
        if self._frozen_at is None:
            return
        self._frozen_us = now_us() - self._frozen_at
        self._frozen_at = None
        self._emit(Thawed(pids=pids, microseconds=self._frozen_us))

    def frozen_so_far(self) -> int:
        """How long the target did not run, in microseconds; still counting while it does not."""
        return self._frozen_us if self._frozen_at is None else now_us() - self._frozen_at
