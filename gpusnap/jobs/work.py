"""One operation at a time, in a thread, so that signals are heard meanwhile."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class Work:
    """The operation that is under way, and what is to follow it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpusnap-run")
        self._pending: tuple[Callable[[], bool], Callable[[], None]] | None = None

    @property
    def busy(self) -> bool:
        """Whether there is one."""
        return self._pending is not None

    def begin(
        self, call: Callable[[], _T], then: Callable[[Future[_T]], None] | None = None
    ) -> None:
        """Begin one.

        Args:
            call: What is done in the thread.
            then: Called with its outcome, by :meth:`settle`; None where that is no matter.
        """
        future = self._pool.submit(call)
        self._pending = (future.done, lambda: None if then is None else then(future))

    def settle(self) -> None:
        """If it is over, do what follows it, which may begin the next one."""
        if self._pending is None:
            return
        done, then = self._pending
        if done():
            self._pending = None
            then()
