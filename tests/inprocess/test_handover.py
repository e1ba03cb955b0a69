"""A restored tree in the place of a process."""

import subprocess
import sys

import pytest

WAIT = """
import os, signal, subprocess, sys, threading
from types import SimpleNamespace
from gpusnap.errors import TargetError
from gpusnap.handover import wait_for

def await_no_child():
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        pass

child = subprocess.Popen(["sleep", "60"])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # it may come before it is waited for
{before}
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
try:
    sys.exit(wait_for(SimpleNamespace(init_pid=None, root_pid=child.pid)))
except TargetError as error:
    sys.exit(error.text.replace(str(child.pid), "N"))
"""


@pytest.mark.parametrize(
    ("before", "code", "text"),
    [
        ("", 143, ""),
        ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", 143, ""),
        (
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN); child.kill(); await_no_child()",
            1,
            "Process N ended, and its exit code is not known\n",
        ),
    ],
)
def test_what_the_process_before_has_done_to_signals(before: str, code: int, text: str) -> None:
    script = WAIT.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (code, text)
