"""Refuses arguments of the public calls that no operation could ever use."""

from collections.abc import Collection

from gpusnap.errors import UsageError

_LONGEST_US = 30 * 24 * 3600 * 1_000_000


def check_pid(pid: object) -> int:
    """A PID is a whole number.

    Raises:
        UsageError: It is none.
    """
    if isinstance(pid, bool) or not isinstance(pid, int):
        msg = f"{pid!r} is not a PID, which is a whole number"
        raise UsageError(msg)
    return pid


def check_timeout(name: str, timeout_us: object) -> int:
    """A timeout is a whole number of microseconds, up to 30 days.

    Raises:
        UsageError: It is none.
    """
    if isinstance(timeout_us, bool) or not isinstance(timeout_us, int):
        msg = f"{name} is {timeout_us!r}, not a whole number of microseconds"
        raise UsageError(msg)
    if not 0 < timeout_us <= _LONGEST_US:
        msg = f"{name} is not between one microsecond and 30 days"
        raise UsageError(msg)
    return timeout_us


def check_codes(force: Collection[str]) -> frozenset[str]:
    """Codes of findings; a single one may come by itself."""
    return frozenset((force,) if isinstance(force, str) else force)
