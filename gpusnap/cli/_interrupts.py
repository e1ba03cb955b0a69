"""Signals that ask gpusnap to stop: the first one unwinds it, so that the engine rolls back."""

import signal
import threading
from types import FrameType
from typing import Self

from gpusnap.cli._messages import Failure
from gpusnap.events import (
    Event,
    OperationEnded,
    Phase,
    PhaseFinished,
    PhaseStarted,
    SnapshotRestored,
)
from gpusnap.hookspecs import hookimpl

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_HOLDING = frozenset({Phase.LOCK, Phase.CHECKPOINT, Phase.PUBLISH})
"""Steps that a signal waits for, beside those that give devices back; PUBLISH holds on."""


class Interrupted(KeyboardInterrupt):
    """A signal asked gpusnap to stop."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Interrupts:
    """Turns the first signal into :class:`Interrupted`, at a point where that does no harm.

    It is a plugin too: events tell it when. A rollback is never cut short. A driver's call
    cannot be called back and would take effect after a rollback: it is waited for. Where the
    devices are being given back, going on is the rollback. From the publication of a snapshot
    on it is too late: the operation ends as if there had been no signal.
    """

    def __init__(self) -> None:
        self._deaf = False
        self._held_back = False
        self._pending: int | None = None
        self._rolling_back = False
        self._rolled_back = False

    def __enter__(self) -> Self:
        """Listen, except to signals that whoever started gpusnap has it ignore (nohup)."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more: what is done is done, a late signal must not make it look failed."""
        self._deaf = True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._deaf:
            return
        self._deaf = True
        self._pending = number
        if not self._held_back:
            self._unwind()

    def _unwind(self) -> None:
        if self._pending is not None:
            number, self._pending = self._pending, None
            raise Interrupted(number)

    def operation_ended(self, *, last: bool) -> None:
        """Hear that an operation ended well.

        Args:
            last: Whether it was what the user asked for, so that a signal is too late; if not,
                one that waits unwinds now.
        """
        self._held_back = last
        if not last:
            self._unwind()

    @property
    def late(self) -> int | None:
        """The signal that came when the operation could no longer be undone, if one did."""
        return self._pending

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        """Learn where the operation is."""
        match event:
            case PhaseStarted(phase=Phase.ROLLBACK):
                self._deaf = self._rolling_back = True
                self._pending = None
            case PhaseFinished(phase=Phase.ROLLBACK):
                self._rolled_back = True
            case (
                PhaseStarted(phase=Phase.RESTORE | Phase.UNLOCK)
                | SnapshotRestored()
                | OperationEnded()
            ):
                self._held_back = True
            case PhaseStarted(phase=phase):
                self._unwind()
                self._held_back = phase in _HOLDING
            case PhaseFinished(phase=Phase.LOCK | Phase.CHECKPOINT):
                self._held_back = False
                self._unwind()

    def failure(self, number: int) -> Failure:
        """The last line after a signal."""
        text = f"Interrupted by {signal.Signals(number).name}"
        if not self._rolling_back:
            return Failure(code=128 + number, text=text)
        if self._rolled_back:
            return Failure(code=128 + number, text=f"{text}; what had been done so far was undone")
        return Failure(
            code=128 + number,
            text=f"{text}; not all that had been done so far could be undone",
            cure="Run gpusnap recover",
        )
