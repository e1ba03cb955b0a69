"""Processes at the very moment of their end."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpusnap import target
from gpusnap.target import identity, is_zombie
from gpusnap.types import ProcessId

HEADLESS = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
exit_this_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
ctypes.CDLL(None).syscall(exit_this_thread, 0)
"""


@contextmanager
def headless() -> Iterator[ProcessId]:
    """A process whose first thread has ended, so that it shows as a zombie; another one runs."""
    process = subprocess.Popen([sys.executable, "-S", "-c", HEADLESS], stdin=subprocess.DEVNULL)
    while not is_zombie(process.pid):
        time.sleep(0.005)
    found = identity(process.pid)
    assert found is not None
    try:
        yield found
    finally:
        process.kill()
        process.wait()


def reaped_at_a_look(monkeypatch: pytest.MonkeyPatch) -> int:
    """The PID of a zombie whose parent reaps it right after somebody has looked at it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    read = target._read_stat

    def look(looked_at: int) -> list[str]:
        stat = read(looked_at)
        if looked_at == pid:
            os.waitpid(pid, 0)
        return stat

    monkeypatch.setattr(target, "_read_stat", look)
    return pid
