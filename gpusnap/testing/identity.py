"""Which process is which, read with nothing but the kernel.

The same answers as :mod:`gpusnap.target` gives, which a target program cannot import: what is
loaded into it has to stay small. And a target program reads another clock: CRIU restores into
a time namespace of its own, where /proc shows start times moved by that namespace's offset.
"""

import os
from pathlib import Path

from gpusnap.types import ProcessId

_STATE, _START = 0, 19
"""Positions in /proc/PID/stat counted from the state, which follows the bracketed name."""

_NANOSECONDS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def identify(pid: int) -> ProcessId | None:
    """The identity of a living process; None where there is none or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in "ZX" else ProcessId(pid, int(fields[_START]))


def own_identity() -> ProcessId:
    """Identity of this process as others see it, which changes when it is restored."""
    own = identify(os.getpid())
    assert own is not None  # noqa: S101 - a process that runs is no zombie
    start = own.start_ticks * _NANOSECONDS_PER_TICK - _boot_offset()
    return ProcessId(own.pid, start // _NANOSECONDS_PER_TICK)


def _boot_offset() -> int:
    """How far this process's time namespace moves the boot clock, in nanoseconds."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except FileNotFoundError:  # a kernel without time namespaces
        return 0
    fields = next(line.split() for line in lines if line.startswith("boottime"))
    return int(fields[1]) * 1_000_000_000 + int(fields[2])


def is_alive(process: ProcessId) -> bool:
    """True while that very process lives.

    One tick more is the same start: a process that took an offset off a rounded time, as
    :func:`own_identity` does, may come out one tick early.
    """
    found = identify(process.pid)
    return found is not None and found.start_ticks - process.start_ticks in {0, 1}
