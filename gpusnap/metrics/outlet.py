"""What the plugins share: they listen while an operation runs, and work when it is over.

While a target stands still nothing slow may run. So an outlet keeps an operation's events in
memory until its last one, which comes when the target computes again. Then it does its work in a
thread and waits for that a bounded time: a file system that hangs costs seconds, once, and what
fails becomes a warning.
"""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import UTC, datetime
from typing import ClassVar

import msgspec

from gpusnap.errors import DeadlineError, GpusnapError
from gpusnap.events import (
    Event,
    OperationEnded,
    OperationFailed,
    OperationStarted,
    PhaseProgress,
)
from gpusnap.hookspecs import hookimpl

_DEADLINE_S = 5.0
"""How long work may take before gpusnap goes on without it."""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """An event and when it came, in UTC."""

    time: datetime
    event: Event


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one operation in order, or one event that belongs to none.

    Attributes:
        start: The first event of the operation, or None.
    """

    heard: tuple[Heard, ...]
    start: OperationStarted | None = None


class Ear:
    """Sorts events to operations, of which several may run at once, each in its thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, list[Heard]] = {}

    @property
    def busy(self) -> bool:
        """Whether an operation is under way."""
        return bool(self._open)

    def hear(self, event: Event) -> Batch | None:
        """Keep an event; returns what is complete with it."""
        thread = threading.get_ident()
        with self._lock:
            heard = Heard(time=datetime.now(UTC), event=event)  # in here: times rise
            if isinstance(event, OperationStarted):
                self._open[thread] = [heard]
                return None
            # A thread without an operation works for one: none is told of while it runs.
            mine = self._open.get(thread) or next(iter(self._open.values()), None)
            if mine is None:
                return Batch(heard=(heard,))
            mine.append(heard)
            if isinstance(event, OperationEnded | OperationFailed):
                return _closed(self._open.pop(thread, []))
        return None


def _closed(heard: list[Heard]) -> Batch | None:
    start = heard[0].event if heard else None
    return Batch(heard=tuple(heard), start=start) if isinstance(start, OperationStarted) else None


class Outlet(ABC):
    """A plugin that tells the outside what happened, and rests unless its variable is set."""

    variables: ClassVar[tuple[str, ...]]
    """The environment variables that switch it on."""

    def __init__(self) -> None:
        self.ear = Ear()
        self._work: Future[None] | None = None

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        """Keep an event; tell an operation's when it was the last.

        Raises:
            GpusnapError: It cannot be told.
        """
        if isinstance(event, PhaseProgress) or not any(map(os.environ.get, self.variables)):
            return
        batch = self.ear.hear(event)
        if batch is not None:
            self.tell(batch)

    @abstractmethod
    def tell(self, batch: Batch) -> None:
        """Tell the outside of a batch; bounded in time.

        Raises:
            GpusnapError: It cannot be told.
        """

    def bounded(self, work: Callable[[], None], what: str) -> None:
        """Do work that may hang, and go on without it after some seconds.

        Args:
            work: What to do; one that hung before is not joined by another.
            what: What is worked on, for the error.

        Raises:
            DeadlineError: It was not done in time.
            GpusnapError: It failed.
        """
        if self._work is not None and not self._work.done():
            raise _late(what)
        self._work = future = Future[None]()
        threading.Thread(target=_run, args=(work, future), daemon=True).start()
        try:
            future.result(_DEADLINE_S)
        except FutureTimeout:
            raise _late(what) from None
        except OSError as error:
            msg = f"{what} cannot be written: {error.strerror or error}"
            raise GpusnapError(msg) from error


def _run(work: Callable[[], None], future: "Future[None]") -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told where it is waited for
        future.set_exception(error)
    else:
        future.set_result(None)


def _late(what: str) -> DeadlineError:
    msg = f"{what} was not written within {_DEADLINE_S:g} s"
    return DeadlineError(msg, cure="Look at the file system that it is on")
