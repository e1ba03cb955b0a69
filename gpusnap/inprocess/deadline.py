"""Ends a function of the program that takes too long, in the thread that runs it.

A watchdog thread sends a signal to the main thread. That ends Python code and system calls that
wait; a call into a C library that neither returns nor waits in the kernel goes on.
"""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from gpusnap.errors import UsageError

_AGAIN_S = 1.0
"""How long after a first interruption the next one follows, for code that passed over it."""


class DeadlineMissed(BaseException):
    """Raised within what took too long; no ``except Exception`` there may pass over it."""


def call_within(seconds: float, function: Callable[..., object], *arguments: object) -> None:
    """Call a function, and end it after so many seconds; only in the main thread.

    Args:
        seconds: At most :data:`threading.TIMEOUT_MAX`.
        function: What is called.
        *arguments: What it is given.

    Raises:
        DeadlineMissed: It did not end in time.
        UsageError: The program has no signal left for it.
    """
    watch = _Watch(seconds)
    try:
        watch.start()
        watch.call(function, arguments)
    finally:
        watch.stop()


class _Watch:
    """Interrupts what :meth:`call` calls, and nothing else.

    Other interruptions, such as Ctrl-C, may come between any two instructions here. Whatever they
    leave undone, a signal that comes later must not end the program: its handler stays until the
    watchdog has ended, and raises only below :meth:`call`.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._number = _free_signal()
        self._mask: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.get_ident()
        self._watchdog = threading.Thread(target=self._watch, name="gpusnap-deadline", daemon=True)

    def start(self) -> None:
        signal.signal(self._number, self._interrupt)
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {self._number})
        self._watchdog.start()

    def call(self, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        try:
            function(*arguments)
        finally:
            self._over.set()

    def stop(self) -> None:
        self._over.set()
        if self._watchdog.ident is not None:
            self._watchdog.join()
        # In between, for it drops a signal that has not arrived yet
        signal.signal(self._number, signal.SIG_IGN)
        signal.signal(self._number, signal.SIG_DFL)
        if self._number in self._mask:
            signal.pthread_sigmask(signal.SIG_BLOCK, {self._number})

    def _watch(self) -> None:
        wait = self._seconds
        while not self._over.wait(wait):
            signal.pthread_kill(self._thread, self._number)
            wait = _AGAIN_S

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is _Watch.call.__code__ and frame.f_locals["self"] is self:
                raise DeadlineMissed
            frame = frame.f_back


def _free_signal() -> int:
    """A real-time signal that the program does nothing with.

    Raises:
        UsageError: There is none.
    """
    taken = _caught()
    for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1):
        if signal.getsignal(number) is signal.SIG_DFL and not taken >> (number - 1) & 1:
            return number
    raise UsageError("The program uses all real-time signals, and none is left for a deadline")


def _caught() -> int:
    """The signals that the process handles, as bits; Python does not know of a C library's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
