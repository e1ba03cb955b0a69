"""Processes at the very moment of their end, and those that fork until then."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpusnap import target
from gpusnap.target import identity, is_zombie, lives
from gpusnap.types import ProcessId
from tests.pids import kill

HEADLESS = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
exit_this_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
ctypes.CDLL(None).syscall(exit_this_thread, 0)
"""

FAMILY = """
import os, sys, threading, time

def keep_forking():  # children that live for a moment
    while True:
        if (child := os.fork()) == 0:
            time.sleep(0.003)
            os._exit(0)
        os.waitpid(child, 0)

for number in range(3):
    if os.fork() == 0:
        if sys.argv[2] == "apart":
            os.setsid()
        open(f"{sys.argv[1]}.{number}", "w").close()
        keep_forking()
threading.Thread(target=keep_forking).start()
"""

ORPHAN = """
import os, sys, time
if (child := os.fork()) == 0:
    if os.fork() == 0:
        open(sys.argv[1], "w").close()
        time.sleep(600)
    os._exit(0)
os.waitpid(child, 0)
time.sleep(600)
"""


def running(mark: Path) -> list[int]:
    """Those of a program, and of what it has forked, that live; told by its first argument."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            if entry.name.isdigit() and os.fsencode(mark) in arguments:
                found.append(int(entry.name))
    return [pid for pid in found if lives(pid)]


@contextmanager
def forking(program: str, mark: Path, *arguments: str, made: Sequence[Path]) -> Iterator[ProcessId]:
    """A program in a session of its own, once it has made some files; all of it ends in the end."""
    command = [sys.executable, "-S", "-c", program, str(mark), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while not all(map(Path.exists, made)):
        time.sleep(0.005)
    found = identity(process.pid)
    assert found is not None
    try:
        yield found
    finally:
        while left := running(mark):
            for pid in left:
                kill(pid)
        process.wait()


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
