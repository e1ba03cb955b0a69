"""When a job is saved next, how much of its work could be lost, and how long to wait after a crash.

All times are of ``time.monotonic``, in seconds.
"""

from gpusnap.jobs.record import RunOptions

_LONGEST_DELAY_S = 300.0


class Schedule:
    """The snapshots of a run by the clock, and the bound on the work that could be lost."""

    def __init__(self, options: RunOptions, now: float) -> None:
        self._every = _seconds(options.every_us)
        self._bound = _seconds(options.bound_loss_us)
        self._steps = options.every_steps
        self._saved = now
        self._tried = now
        self._took = 0.0
        self._warned: set[str] = set()

    def due(self, now: float) -> bool:
        """Whether the next snapshot is due."""
        return self._every is not None and now >= self._tried + self._every

    def tried(self, now: float) -> None:
        """Hear that a snapshot was tried, or the job brought back: the interval begins anew."""
        self._tried = now

    def saved(self, began: float, now: float) -> None:
        """Hear that the job's state of an instant is safe, and since when."""
        self._saved = began
        self._took = max(self._took, now - began)
        self._warned.discard("late")

    def risk(self, now: float) -> str | None:
        """What exceeds the bound, in a sentence, each kind once."""
        if self._bound is None:
            return None
        for kind, text in self._risks(self._bound, now).items():
            if kind not in self._warned:
                self._warned.add(kind)
                return text
        return None

    def _risks(self, bound: float, now: float) -> dict[str, str]:
        risks = {}
        more = f"more than --bound-loss {bound:g} s"
        if self._every is None and self._steps is None:
            risks["never"] = f"Nothing saves the job at intervals: it could lose {more}"
        elif self._every is not None and self._every + self._took > bound:
            taken = f" and a snapshot takes {self._took:.3g} s" if self._took else ""
            risks["plan"] = f"The job is saved every {self._every:g} s{taken}: it could lose {more}"
        elif now - self._saved > bound:
            risks["late"] = f"The job was last saved {now - self._saved:.0f} s ago: {more}"
        return risks


class Backoff:
    """Counts attempts to bring a job back that followed each other without progress."""

    def __init__(self, first_s: float) -> None:
        self._first = first_s
        self.attempts = 0

    def next_delay(self) -> float:
        """How long to wait before the next attempt, in seconds: twice as long each time."""
        delay = self._first * float(2 ** min(self.attempts, 32))
        self.attempts += 1
        return min(delay, max(self._first, _LONGEST_DELAY_S))

    def reset(self) -> None:
        """Hear of progress."""
        self.attempts = 0


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
