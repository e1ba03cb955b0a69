"""What copying and writing cost here and now, so that the target waits as little as it can."""

_WEIGHT = 0.3
_WORTH = 1.25
"""Writing at once halves the work, so waiting has to be so much faster for the target."""


class Rate:
    """A cost in seconds a byte, the last measurements counting most.

    Threads share it without a lock: a measurement that is lost makes no difference.
    """

    def __init__(self) -> None:
        self.cost: float | None = None

    def note(self, seconds: float, length: int) -> None:
        """Add a measurement."""
        if length:
            cost = seconds / length
            self.cost = cost if self.cost is None else self.cost + _WEIGHT * (cost - self.cost)


class Pace:
    """Costs that decide whether a buffer is written at once or has to wait.

    Memory that was never touched is expensive, most of all in a virtual machine: to copy into
    new buffers can take longer than to copy into a used one and to write that into the page
    cache. A disk that is busy turns it round.

    Attributes:
        fresh: To copy into a buffer that is new.
        used: To copy into a buffer that was used before.
        write: To write bytes as they are.
    """

    def __init__(self) -> None:
        self.fresh = Rate()
        self.used = Rate()
        self.write = Rate()

    @property
    def favours_writing(self) -> bool:
        """Whether the target is released sooner by writing at once; tried before it is known."""
        fresh, used, write = self.fresh.cost, self.used.cost, self.write.cost
        if fresh is None or used is None or write is None:
            return True
        return used + write <= _WORTH * fresh

    def pays(self, ratio: float, cost: float) -> bool:
        """Whether encoding makes writing faster.

        Args:
            ratio: What the codec leaves of a byte.
            cost: Seconds that it takes for a byte.
        """
        write = self.write.cost
        return write is not None and cost + ratio * write < write
