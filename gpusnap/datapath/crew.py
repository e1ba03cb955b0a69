"""Threads that work on one thing together: the first failure stops all of them."""

import threading
import time
from collections.abc import Callable, Iterable

from gpusnap.errors import GpusnapError
from gpusnap.hookspecs import Progress

_REPORT_S = 0.1
"""How often the caller hears of progress."""

_CURE = "Raise the limit (ulimit -u, or pids.max of the control group), or use fewer workers"


class StoppedError(Exception):
    """Raised in a thread that goes on although the work was called off."""


class Crew:
    """Some threads and the lock that guards what they share.

    Attributes:
        changed: Notified whenever something that a thread waits for changed.
        over: Notified, under the same lock, when what the caller waits for may have come. Were it
            woken by every change, it would take the interpreter's lock from the threads each time.
    """

    def __init__(self) -> None:
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        self.over = threading.Condition(lock)
        self._threads: list[threading.Thread] = []
        self._working = 0
        self._error: BaseException | None = None
        self._stopped = False

    def start(self, count: int, work: Callable[[int], None]) -> None:
        """Start threads, each of which calls ``work`` with its number.

        Raises:
            GpusnapError: There can be no more threads; those that there were have ended.
        """
        names = [f"gpusnap-datapath-{number}" for number in range(count)]
        self._threads = [
            threading.Thread(target=self._run, args=(work, number), name=name)
            for number, name in enumerate(names)
        ]
        self._working = count
        try:
            # None begins before all are there: each new one would have to wait for the others
            with self.changed:
                _start(self._threads)
        except BaseException:
            self.stop()
            raise

    def _run(self, work: Callable[[int], None], number: int) -> None:
        error = None
        with self.changed:
            pass
        try:
            work(number)
        except StoppedError:
            pass
        except BaseException as raised:  # noqa: BLE001  it is raised in the caller
            error = raised
        with self.changed:
            self._working -= 1
            self._error = self._error or error
            self._stopped = self._stopped or error is not None
            self.changed.notify_all()
            self.over.notify_all()

    def check(self) -> None:
        """Leave a thread whose work was called off."""
        if self._stopped:
            raise StoppedError

    def wait(self) -> None:
        """Wait in a thread, the lock held, until something changed."""
        self.check()
        self.changed.wait()
        self.check()

    def watch(
        self, progress: Progress, total: int, done: Callable[[], int], finished: Callable[[], bool]
    ) -> None:
        """Wait in the caller until ``finished``, which is asked with the lock held.

        Raises:
            BaseException: What failed in a thread, or in the caller. The work is called off then,
                and :meth:`stop` waits for the threads, one of which a disk that hangs may hold.
        """
        try:
            while not self._finished_soon(finished):
                progress(done(), total)
            self._raise_failure()
            progress(done(), total)
        except BaseException:
            self.call_off()
            raise

    def run(
        self,
        count: int,
        work: Callable[[int], None],
        progress: Progress,
        total: int,
        done: Callable[[], int],
    ) -> None:
        """Start threads and wait until all have done their work; else as :meth:`watch`, and wait.

        An interrupt at any instant leaves no thread behind, which might write somewhere.
        """
        try:
            self.start(count, work)
            self.watch(progress, total, done, lambda: self.ended)
            self.join()
        except BaseException:
            self.stop()
            raise

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error
        if self._stopped:
            raise RuntimeError("The work was called off")

    def _finished_soon(self, finished: Callable[[], bool]) -> bool:
        end = time.monotonic() + _REPORT_S
        with self.over:
            while not finished() and not self._stopped:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self.over.wait(left)
        return True

    @property
    def failure(self) -> BaseException | None:
        """What failed first in a thread, if anything."""
        return self._error

    @property
    def ended(self) -> bool:
        """Whether all threads have done their work, or failed; the lock must be held."""
        return self._working == 0

    def stop(self) -> None:
        """Call the work off and wait for the threads to notice."""
        self.call_off()
        self.join()

    def call_off(self) -> None:
        """Call the work off; the threads notice soon."""
        with self.changed:
            self._stopped = True
            self.changed.notify_all()
            self.over.notify_all()

    def join(self) -> None:
        """Wait for the threads to end; those that have done their work still take last steps."""
        for thread in self._threads:
            if thread.ident is not None:  # not all were started where there is no room for more
                thread.join()


def _start(threads: Iterable[threading.Thread]) -> None:
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as error:
        raise GpusnapError("The system allows no more threads", cure=_CURE) from error
