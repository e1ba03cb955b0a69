"""Processes that hold one hard thing each, to be looked at and, some of them, to be dumped."""

import subprocess
import sys
import time
from pathlib import Path

from gpusnap.target import find_target, identity, lives
from gpusnap.types import Target
from tests.pids import kill

PROGRAM = """
import ctypes, fcntl, mmap, os, socket, sys, time
folder = {folder!r}
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    "A system call; ends the process with the error's number where the kernel refuses it."
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0:
        done(f"errno {{ctypes.get_errno()}}")
        sys.exit(1)
    return result
def done(word):
    with open(folder + "/ready.new", "w") as file:
        file.write(word)
    os.rename(folder + "/ready.new", folder + "/ready")
{setup}
done("ready")
while True:
    time.sleep(1000)
"""


class Program:
    """A process that has done its setup and sleeps.

    Attributes:
        refusal: What the kernel said where it did not allow the setup, else an empty text.
    """

    def __init__(self, folder: Path, setup: str, **options: object) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        (folder / "program.py").write_text(PROGRAM.format(folder=str(folder), setup=setup))
        settings: dict[str, object] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "start_new_session": True,
        }
        command = [sys.executable, "-S", "-E", str(folder / "program.py")]
        with (folder / "errors").open("wb") as said:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
                command, stderr=said, **settings | options
            )
        self.pid: int = self.process.pid
        word = self._await()
        self.refusal = "" if word == "ready" else word

    def _await(self) -> str:
        ready = self.folder / "ready"
        deadline = time.monotonic() + 60
        while True:
            ended = self.process.poll() is not None  # looked at first: its last word may come now
            if ready.exists():
                return ready.read_text()
            assert not ended, (self.folder / "errors").read_text()
            assert time.monotonic() < deadline, "The program did not start"
            time.sleep(0.005)

    @property
    def target(self) -> Target:
        return find_target(self.pid)

    def gone(self) -> None:
        """Wait until nobody has its PID any more."""
        self.process.wait(60)
        while identity(self.pid) is not None:
            time.sleep(0.01)

    def end(self) -> None:
        """Kill it, what it forked, and what was restored in its place."""
        pids = find_target(self.pid).pids if lives(self.pid) else ()
        for pid in pids:
            kill(pid)
        self.process.wait()
