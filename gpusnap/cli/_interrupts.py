"""Signals that ask gpusnap to stop: the first one unwinds it, so that the engine rolls back."""

import signal
import threading
from types import FrameType
from typing import Self

from gpusnap.cli._messages import Failure
from gpusnap.events import Event, Phase, PhaseFinished, PhaseStarted
from gpusnap.hookspecs import hookimpl

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal asked gpusnap to stop."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Interrupts:
    """Turns the first signal into :class:`Interrupted`; later ones, or one in a rollback, wait.

    It is a plugin too: by the events it learns of a rollback, which nothing may cut short.
    """

    def __init__(self) -> None:
        self._deaf = False
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
        raise Interrupted(number)

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        """Note when a rollback begins and ends."""
        match event:
            case PhaseStarted(phase=Phase.ROLLBACK):
                self._deaf = True
                self._rolling_back = True
            case PhaseFinished(phase=Phase.ROLLBACK):
                self._rolled_back = True

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
