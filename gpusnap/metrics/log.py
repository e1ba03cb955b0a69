"""The event log: ``GPUSNAP_EVENT_LOG`` names a file that gets a line of JSON for each event.

The lines of one operation are written at once when it is over. Any number of gpusnap processes
may write to one file.
"""

import errno
import fcntl
import os

import msgspec

from gpusnap.events import Event
from gpusnap.metrics.outlet import Batch, Outlet
from gpusnap.repository import encodable, timestamp

_VARIABLE = "GPUSNAP_EVENT_LOG"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log.

    Attributes:
        time: When it happened, RFC 3339 in UTC with microseconds.
        process: PID of the gpusnap that tells it.
        operation: The ``id`` of the operation that it belongs to, or None.
        event: What happened; ``type`` in it names the class in :mod:`gpusnap.events`.
    """

    time: str
    process: int
    operation: str | None
    event: Event


class EventLog(Outlet):
    """Writes events to a file."""

    variables = (_VARIABLE,)

    def tell(self, batch: Batch) -> None:
        """Append the lines of a batch."""
        path = os.environ[_VARIABLE]
        data = lines(batch)
        self.bounded(lambda: append(path, data), f"The event log {path}")


def lines(batch: Batch) -> bytes:
    """A batch as lines of JSON."""
    operation = batch.start.id if batch.start else None
    found = (
        LogLine(
            time=timestamp(each.time), process=os.getpid(), operation=operation, event=each.event
        )
        for each in batch.heard
    )
    return b"".join(map(json_line, found))


def json_line(value: msgspec.Struct) -> bytes:
    """A struct as one line of JSON, whatever bytes a path in it holds."""
    return msgspec.json.encode(encodable(msgspec.to_builtins(value))) + b"\n"


def append(path: str, data: bytes) -> None:
    """Append to a file as one piece, or not at all.

    Raises:
        OSError: It cannot be written; nothing of the data is in it.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    log = os.open(path, flags, 0o600)
    try:
        # Not for the order, which O_APPEND keeps: a piece cut short by a full disk is taken back.
        fcntl.flock(log, fcntl.LOCK_EX)
        size = os.fstat(log).st_size
        if os.write(log, data) < len(data):
            os.ftruncate(log, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(log)


event_log = EventLog()
