"""Passes on what a job writes into its run's files, as if it had written it there itself."""

import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from gpusnap.jobs.outputs import STDERR, STDOUT, Length

_POLL_S = 0.05
_PIECE = 1 << 16
_KEPT = 1 << 20
"""How much of what was passed on is remembered, in bytes."""


class Echo:
    """Copies a file that grows to a descriptor, in a thread of its own.

    A job that is restored writes again what it had written after its snapshot. As long as that
    is the same text, byte for byte, it is not passed on a second time.

    Args:
        source: The file.
        destination: Open descriptor.
        begin: From where on, in bytes.
    """

    def __init__(self, source: Path, destination: int, begin: int) -> None:
        self._file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        self._destination = destination
        self._position = begin
        self._kept = b""
        self._again = b""
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="gpusnap-echo")
        self._deaf = False
        self.broken = False
        """Whether the destination is a pipe that nobody reads any more."""
        self._thread.start()

    def rewind(self, length: int) -> None:
        """Pass on all that is there, since the file is about to be cut to that length, in bytes."""
        self.drain()
        with self._lock:
            lost = self._position - length
            if lost <= 0:
                return
            known = lost <= len(self._kept)
            # What it had not come to again before another crash was passed on all the same
            self._again = self._kept[-lost:] + self._again if known else b""
            self._kept = self._kept[:-lost] if known else b""
            self._position = length

    def drain(self) -> None:
        """Pass on all that is there."""
        while self._pass_on() and not self._deaf:
            pass

    def finish(self) -> None:
        """Pass on all that is there, and stop."""
        self._done.set()
        self._thread.join()
        os.close(self._file)

    def _run(self) -> None:
        while not self._deaf:
            last = self._done.wait(_POLL_S)
            self.drain()
            if last:
                return

    def _pass_on(self) -> bool:
        """Pass on one piece; False where there is none."""
        with self._lock:
            data = os.pread(self._file, _PIECE, self._position)
            self._position += len(data)
            new = self._unless_again(data)
            self._kept = (self._kept + data)[-_KEPT:]
            self._write(new)
            return bool(data)

    def _unless_again(self, data: bytes) -> bytes:
        """The part of new text that was not passed on before."""
        if not self._again:
            return data
        same = _common(data, self._again)
        if same == len(data):
            self._again = self._again[same:]
            return b""
        lost, self._again = self._again, b""
        if same == len(lost):
            return data[same:]
        # Another text than before: it begins on a line of its own, and that from its beginning
        whole = self._kept.rpartition(b"\n")[2] + data[:same]
        begun = whole.rpartition(b"\n")[2]
        return (b"" if lost.endswith(b"\n") else b"\n") + begun + data[same:]

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._destination, view) :]
            except BlockingIOError:
                time.sleep(_POLL_S)
            except OSError as error:  # a terminal that was closed, a full disk: the file has it all
                self.broken = isinstance(error, BrokenPipeError)
                self._deaf = True
                return


def _common(one: bytes, other: bytes) -> int:
    """How many bytes two texts have in common at their beginning."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(at for at in range(length) if one[at] != other[at])


class Echoes:
    """The echoes of a run's two files; one that its job does not write into stays empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        own = ((STDOUT, 1, sys.stdout), (STDERR, 2, sys.stderr))
        # Python has no stream where a descriptor was closed when it started
        self._wanted = {name: number for name, number, stream in own if stream}
        self._open: dict[str, Echo] = {}

    def open(self, *, at_end: bool) -> None:
        """Open those that are not open yet.

        Args:
            at_end: Whether what the files hold already is not passed on.
        """
        for name, destination in self._wanted.items():
            path = self._folder / name
            if name not in self._open and path.exists():
                begin = path.stat().st_size if at_end else 0
                self._open[name] = Echo(path, destination, begin)

    def rewind(self, lengths: Iterable[Length]) -> None:
        """Hear to what lengths files are about to be cut; others than the run's are no matter."""
        for length in lengths:
            path = Path(length.path)
            if path.parent == self._folder and path.name in self._open:
                self._open[path.name].rewind(length.size)

    def rewind_all(self) -> None:
        """Hear that the files begin anew."""
        for echo in self._open.values():
            echo.rewind(0)

    def drain(self) -> None:
        """Pass on all that is there, so that what is told next stands behind it."""
        for echo in self._open.values():
            echo.drain()

    @property
    def broken(self) -> bool:
        """Whether somebody who read has gone."""
        return any(echo.broken for echo in self._open.values())

    def finish(self) -> None:
        """Pass on all that is there."""
        for echo in self._open.values():
            echo.finish()
