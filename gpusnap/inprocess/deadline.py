"""Ends a function of the program that takes too long, in the thread that runs it.

A watchdog thread sends a signal to the main thread. That ends Python code and system calls that
wait; a call into a C library that neither returns nor waits in the kernel goes on.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

_AGAIN_S = 1.0
"""How long after a first interruption the next one follows, for code that passed over it."""


class DeadlineMissed(BaseException):
    """Raised within what took too long; no ``except Exception`` there may pass over it."""


class Deadline:
    """A context that raises :class:`DeadlineMissed` in itself after so many seconds.

    Only in the main thread.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._number = _free_signal()
        self._armed = False
        self._ended = threading.Event()
        self._thread = threading.get_ident()
        self._watchdog = threading.Thread(target=self._watch, name="gpusnap-deadline", daemon=True)

    def __enter__(self) -> Self:
        signal.signal(self._number, self._interrupt)
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {self._number})
        self._armed = True
        self._watchdog.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._armed = False
        self._ended.set()
        self._watchdog.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.signal(self._number, signal.SIG_DFL)

    def _watch(self) -> None:
        wait = self._seconds
        while not self._ended.wait(wait):
            signal.pthread_kill(self._thread, self._number)
            wait = _AGAIN_S

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            raise DeadlineMissed


def _free_signal() -> int:
    """A real-time signal that the program does nothing with."""
    numbers = range(signal.SIGRTMAX, signal.SIGRTMIN, -1)
    return next(number for number in numbers if signal.getsignal(number) is signal.SIG_DFL)
