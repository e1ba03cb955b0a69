"""Signals to gpusnap that are meant for what it waits for."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

from gpusnap.jobs.inbox import from_keyboard

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

Send = Callable[[int], None]
"""Sends a signal, by its number, to whatever is waited for."""


class Relay:
    """Passes signals on instead of ending at them, once it was told to hold them.

    Until then, and after the block, they mean what they meant before.

    Args:
        same_terminal: Whether the receiver is in gpusnap's process group, so that it gets the
            keys of a terminal (Ctrl-C, Ctrl-backslash) by itself and must not get them twice.

    Attributes:
        received: What came while they were held, in order.
    """

    def __init__(self, *, same_terminal: bool = False) -> None:
        self._same_terminal = same_terminal
        self._before: dict[int, signal._HANDLER] = {}
        self._holding = False
        self._send: Send | None = None
        self.received: list[int] = []

    def __enter__(self) -> Self:
        """Listen, except to signals that whoever started gpusnap has it ignore (nohup)."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) not in {signal.SIG_IGN, None}:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """From now on signals are kept for the receiver."""
        self._holding = True

    def attach(self, send: Send) -> None:
        """Name the receiver, which gets what has come so far."""
        self._send = send
        for number in self.received:
            send(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._holding:
            self._as_before(number, frame)
            return
        self.received.append(number)
        if self._send is not None and not (self._same_terminal and from_keyboard(number)):
            self._send(number)

    def again(self) -> None:
        """Let a signal that was held do what it would have done before; call it at the end."""
        for number in self.received[:1]:
            self._as_before(number, None)

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        handler = self._before[number]
        if callable(handler):
            handler(number, frame)
        else:
            signal.signal(number, handler)
            signal.raise_signal(number)
