"""Signals to gpusnap, which are meant for the job."""

import os
import signal
from contextlib import suppress
from types import FrameType
from typing import Self

_FOR_THE_JOB = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)
_KEYS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals by which a user ends a program."""


class Inbox:
    """Keeps the signals that come, in order, until they are taken out."""

    def __init__(self) -> None:
        self._before: dict[int, signal._HANDLER] = {}
        self._received: list[int] = []

    def __enter__(self) -> Self:
        """Listen, except to signals that whoever started gpusnap has it ignore (nohup)."""
        for number in _FOR_THE_JOB:
            if signal.getsignal(number) not in {signal.SIG_IGN, None}:
                self._before[number] = signal.signal(number, self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _keep(self, number: int, _frame: FrameType | None) -> None:
        self._received.append(number)

    def take(self) -> tuple[int, ...]:
        """What has come since the last time."""
        count = len(self._received)
        taken, self._received[:count] = tuple(self._received[:count]), []
        return taken


def from_keyboard(number: int) -> bool:
    """Whether a signal most likely came from the terminal, which sends it to the whole group."""
    if number not in _KEYS:
        return False
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False
