"""Code that runs in a time namespace, as all does that CRIU has restored."""

import os
import subprocess
import sys

import pytest

_ENTER = """
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).unshare(0x80):  # CLONE_NEWTIME
    sys.exit(os.strerror(ctypes.get_errno()))
with open("/proc/self/timens_offsets", "w") as offsets:
    offsets.write("boottime " + sys.argv[1])
child = os.fork()  # only children are in the new namespace
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
code = sys.argv[2]
del sys.argv[1:3]
exec(code)
"""

OFFSETS = ["1000 0", "0 5000000", "12345 999999999", "-3 0", "-4 4999999"]
"""Seconds and nanoseconds; the negative ones put the start of PID 1 before the clock's zero."""


def skip_without() -> None:
    """Skip where no time namespace can be made."""
    if os.geteuid() != 0:
        pytest.skip("Needs root: a time namespace is made")
    if not os.path.lexists("/proc/self/ns/time"):
        pytest.skip("This kernel has no time namespaces")


def start_in(offset: str, code: str) -> subprocess.Popen[str]:
    """Start Python code in a new time namespace, with pipes for input and output."""
    return subprocess.Popen(
        [sys.executable, "-c", _ENTER, offset, code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_in(offset: str, code: str, *arguments: object) -> str:
    """Run Python code in a new time namespace; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", _ENTER, offset, code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
