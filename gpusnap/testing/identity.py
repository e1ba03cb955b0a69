"""Which process is which, read with nothing but the kernel.

The same answers as :mod:`gpusnap.target` gives, which a target program cannot import: what is
loaded into it has to stay small.
"""

from pathlib import Path

from gpusnap.types import ProcessId

_STATE, _START = 0, 19
"""Positions in /proc/PID/stat counted from the state, which follows the bracketed name."""


def identify(pid: int) -> ProcessId | None:
    """The identity of a living process; None where there is none or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in "ZX" else ProcessId(pid, int(fields[_START]))


def is_alive(process: ProcessId) -> bool:
    """True while that very process lives."""
    return identify(process.pid) == process
