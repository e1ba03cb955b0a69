"""What copying, encoding and writing cost here and now, to choose what is done soonest."""

_WEIGHT = 0.3
_WORTH = 1.25
"""Writing at once halves the work, so waiting has to be so much faster for the target."""
_GAIN = 0.95
"""Encoding has to shorten the writing to this, or bytes are stored as they are."""
_DOUBT = 1.25
"""A sample is encoded in less time a byte than all memory is, by all threads at once.

By so much, until that was measured.
"""
_SELDOM = 32
"""Of so many buffers in a row at least one is tried, however long nothing paid."""


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
    """Costs that decide how a buffer is stored, and whether at once or later.

    Memory that was never touched is expensive, most of all in a virtual machine: to copy into
    new buffers can take longer than to copy into a used one and to write that into the page
    cache. A disk that is busy turns it round.

    Attributes:
        fresh: To copy into a buffer that is new.
        used: To copy into a buffer that was used before.
        write: To write bytes as they are.
        straight: To copy bytes and write each piece right after it was copied.
    """

    def __init__(self, disk: float, workers: int) -> None:
        """Begin without measurements of this process's own.

        Args:
            disk: Seconds that the disk takes for a byte, whoever wrote it.
            workers: Threads that share the other work.
        """
        self._disk = disk
        self._workers = workers
        self.fresh = Rate()
        self.used = Rate()
        self.write = Rate()
        self.straight = Rate()
        self._doubt = _DOUBT
        self._every = 1
        self._left_out = 0

    @property
    def favours_writing(self) -> bool:
        """Whether the target is released sooner by writing at once; tried before it is known."""
        fresh, used, write = self.fresh.cost, self.used.cost, self.write.cost
        known = [] if self.straight.cost is None else [self.straight.cost]
        if used is not None and write is not None:
            known.append(used + write)
        return fresh is None or not known or min(known) <= _WORTH * fresh

    def note_straight(self, seconds: float, length: int) -> None:
        """Add a measurement of bytes each piece of which was written right after it was copied.

        While all is written so, a disk that becomes busy shows here alone: what takes longer than
        writing did counts as a measurement of that too. What takes less only shows the cache.
        """
        self.straight.note(seconds, length)
        used, write = self.used.cost, self.write.cost
        if used is not None and write is not None and seconds > (used + write) * length:
            self.write.note(seconds - used * length, length)

    def pays(self, ratio: float, cost: float) -> bool:
        """Whether encoding has everything on the disk sooner.

        The disk works while the threads do, so that what takes longer counts.

        Args:
            ratio: What the codec leaves of a byte.
            cost: Seconds that a thread takes to encode a byte.
        """
        write = self._write_cost()
        raw = max(self._disk, write / self._workers)
        # What is encoded sooner than its sample was saves no more of the writing
        worked = max(1.0, self._doubt) * cost + _DOUBT * ratio * write
        encoded = max(self._disk * ratio, worked / self._workers)
        return encoded < _GAIN * raw

    def encoded(self, seconds: float, length: int, cost: float) -> None:
        """Add a measurement of bytes that were encoded, of which a sample cost so much a byte."""
        if length and cost:
            self._doubt += _WEIGHT * (seconds / (cost * length) - self._doubt)

    def _write_cost(self) -> float:
        """To write a byte as it is.

        Where all goes straight only few bytes are written otherwise, the first ones while all
        threads begin: that of a byte which was also copied is then the better measurement.
        """
        known = [cost for cost in (self.write.cost, self.straight.cost) if cost is not None]
        return min(known, default=0.0)

    def try_is_due(self) -> bool:
        """Whether to try what codecs make of the next buffer, whichever thread has it.

        Always while the threads have time, since the disk takes longer than they do. Else the
        less often, the more tries in a row found nothing that pays.
        """
        if self._disk * self._workers > self._write_cost():
            return True
        self._left_out += 1
        if self._left_out < self._every:
            return False
        self._left_out = 0
        # Taken to be in vain until it is known, so that not all threads begin with one
        self._every = min(2 * self._every, _SELDOM)
        return True

    def tried(self, *, pays: bool) -> None:
        """Note whether a try found a codec that pays."""
        if pays:
            self._every = 1
