"""A process that counts in a file, to be dumped, killed and brought back."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from gpusnap.target import identity, lives
from tests.pids import kill

# The file keeps its size, since a restore wants every open file as long as it was
PROGRAM = """
import os, sys, time
out = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
ballast = os.urandom(8 << 20)
{setup}
n = 0
while True:
    n += 1
    os.pwrite(out, b"%020d" % n, 0)
    time.sleep(0.002)
"""

FORKS = """
import threading

def fork():  # once it is told to, which it sees as soon as it runs
    while not os.path.exists(sys.argv[2] + "/fork"):
        time.sleep(0.001)
    if os.fork() == 0:
        open(sys.argv[2] + "/forked", "w").close()
        time.sleep(600)

threading.Thread(target=fork, daemon=True).start()
"""


class Counter:
    """A running counter; ``pid`` is the same before and after a restore."""

    def __init__(self, folder: Path, setup: str = "", **options: object) -> None:
        self.folder = folder
        self.images, self.work = folder / "images", folder / "work"
        self.images.mkdir(parents=True)
        self.work.mkdir()
        self.out = folder / "count"
        program = folder / "counter.py"
        program.write_text(PROGRAM.format(setup=setup))
        settings: dict[str, object] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
            "start_new_session": True,
        }
        command = [sys.executable, "-S", "-E", str(program), str(self.out), str(folder)]
        self.process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            command, **settings | options
        )
        self.pid: int = self.process.pid
        assert self.computes(), "The counter did not start"

    @property
    def count(self) -> int:
        """How far it has come."""
        with suppress(OSError, ValueError):
            return int(self.out.read_text())
        return 0

    def computes(self) -> bool:
        """Whether it counts on."""
        start, deadline = self.count, time.monotonic() + 60
        while self.exists() and time.monotonic() < deadline:
            if self.count > start + 2:
                return True
            time.sleep(0.005)
        return False

    def stands(self) -> bool:
        """Whether the count has not moved for a while."""
        before = self.count
        time.sleep(0.1)
        return self.count == before

    def exists(self) -> bool:
        """Whether a process that has not ended has the PID."""
        return lives(self.pid)

    def wait_gone(self, seconds: float = 60.0) -> bool:
        """Wait until nobody has the PID any more, also no zombie."""
        with suppress(ChildProcessError):
            self.process.wait(seconds)
        deadline = time.monotonic() + seconds
        while identity(self.pid) is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        return identity(self.pid) is None

    def end(self) -> None:
        """Kill whatever is left of it; the PID stays ours until we have reaped the child."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        elif self.exists() and self._restored():
            kill(self.pid)

    def _restored(self) -> bool:
        with suppress(OSError):
            return os.fsencode(self.out) in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        return False
