"""What was copied and is not written yet, and who does what next."""

from collections import deque

import msgspec

from gpusnap.datapath.buffers import Buffer, Buffers
from gpusnap.datapath.codecs import Choice
from gpusnap.datapath.crew import Crew
from gpusnap.datapath.source import Data


class Filled(msgspec.Struct, frozen=True, gc=False):
    """A buffer, what it holds that is not zero, and how to store it."""

    buffer: Buffer
    data: list[Data]
    choice: Choice

    @property
    def length(self) -> int:
        """Bytes that are not zero."""
        return sum(data.length for data in self.data)


class Backlog:
    """Decides for each worker what it does next; copying comes first while there are buffers.

    Attributes:
        passed: Bytes of spans that nobody needs to look at again.
        copied: Bytes that were copied, without pages of zeros.
        written: Of them, bytes that were written.
    """

    def __init__(self, crew: Crew, buffers: Buffers) -> None:
        self._crew = crew
        self._buffers = buffers
        self._filled: deque[Filled] = deque()
        self._copiers = 0
        self.passed = 0
        self.copied = 0
        self.written = 0

    def begin(self, copiers: int) -> None:
        """Expect so many workers to copy."""
        self._copiers = copiers

    @property
    def all_copied(self) -> bool:
        """Whether nothing more is needed of the processes."""
        return self._copiers == 0

    def next(self, *, copying: bool) -> Buffer | Filled | None:
        """Wait for something to do.

        Args:
            copying: Whether the worker has something left to copy.

        Returns:
            An empty buffer to fill, or a full one to write; None when there will be neither.
        """
        with self._crew.changed:
            while True:
                self._crew.check()
                if copying and (buffer := self._buffers.take()) is not None:
                    return buffer
                if self._filled:
                    return self._filled.popleft()
                if self._copiers == 0:
                    return None
                self._crew.wait()

    def check(self) -> None:
        """Leave a thread whose work was called off."""
        self._crew.check()

    def count(self, copied: int, passed: int, written: int = 0) -> None:
        """Count bytes that were copied and written, and of spans that need no second look."""
        with self._crew.changed:
            self.passed += passed
            self.copied += copied
            self.written += written

    def add(self, filled: Filled) -> None:
        """Queue a buffer for whoever has time to write it."""
        with self._crew.changed:
            self._filled.append(filled)
            self._crew.changed.notify_all()

    def finished_copying(self, passed: int) -> None:
        """Note that a worker has nothing left to copy."""
        with self._crew.changed:
            self.passed += passed
            self._copiers -= 1
            if self._copiers == 0:
                self._buffers.drop()
                self._crew.over.notify_all()
            self._crew.changed.notify_all()

    def wrote(self, filled: Filled) -> None:
        """Take back the buffer of something that was written."""
        with self._crew.changed:
            self.written += filled.length
            if self._copiers:
                self._buffers.give(filled.buffer)
            self._crew.changed.notify_all()
