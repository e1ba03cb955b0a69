"""Terminals of a tree, of which CRIU must find both ends or be given one."""

import os
from collections.abc import Iterator

from gpusnap.findings.view import Descriptor, Seen, View
from gpusnap.types import Finding, Severity

_CONSOLE, _AUXILIARY, _SERIAL_LOW, _SERIAL_USB = 4, 5, 204, 188
_CONSOLES = 63
_FIRST_MASTER, _FIRST_SLAVE, _MAJORS = 128, 136, 8  # UNIX98_PTY_*_MAJOR
_MASTER = 2
"""Minor of /dev/ptmx."""


def is_terminal(device: int) -> bool:
    """Whether CRIU takes a character device for a terminal that it can save."""
    major, minor = os.major(device), os.minor(device)
    if major == _CONSOLE:
        return minor <= _CONSOLES
    pseudo = _FIRST_MASTER <= major < _FIRST_SLAVE + _MAJORS
    return (
        pseudo or major in {_SERIAL_LOW, _SERIAL_USB} or (major == _AUXILIARY and minor <= _MASTER)
    )


def _slave(device: int) -> int | None:
    """The number of a pseudo terminal's program end: 3 for /dev/pts/3."""
    major = os.major(device) - _FIRST_SLAVE
    if 0 <= major < _MAJORS:
        return major * 256 + os.minor(device)
    return None


def _is_master(device: int) -> bool:
    return (os.major(device), os.minor(device)) == (_AUXILIARY, _MASTER)


def _terminals(view: View) -> Iterator[tuple[Seen, Descriptor, int]]:
    return (
        (seen, each, device)
        for seen in view.seen
        for each, device in seen.character_devices
        if is_terminal(device)
    )


def needs_shell_job(view: View) -> bool:
    """True where the tree belongs to a session led from outside, as a shell's jobs do."""
    return view.target.root.session_id not in view.target.pids


def check_terminals(view: View) -> Iterator[Finding]:
    """Find terminals whose other end a process outside holds.

    A job of a shell may have one, and gets the terminal of the restore in its place.
    """
    masters = {
        int(dict(each.info()).get("tty-index", "-1"))
        for _, each, device in _terminals(view)
        if _is_master(device)
    }
    lonely: dict[int, tuple[Seen, Descriptor]] = {}
    for seen, each, device in _terminals(view):
        number = _slave(device)
        if number is not None and number not in masters:
            lonely.setdefault(number, (seen, each))
    allowed = needs_shell_job(view) and len(lonely) == 1
    for seen, each in lonely.values():
        yield Finding(
            code="terminal",
            severity=Severity.WARNING if allowed else Severity.ERROR,
            text=f"{seen.label} is attached to the terminal {each.link} by descriptor "
            f"{each.number}, "
            + (
                "so that it can be restored from a terminal alone"
                if allowed
                else "whose other end is outside of the tree"
            ),
            cure="Start it with setsid and its input and output in files",
            pid=seen.pid,
        )
