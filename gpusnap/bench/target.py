"""The program as the bench sees it: started, asked for its checksum, ended."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from gpusnap.bench.program import ANSWER, Answer
from gpusnap.errors import DeadlineError, GpusnapError
from gpusnap.target import alive, gone, identity, myself

_MODULE = "gpusnap.bench.program"
_PATIENCE_S = 60.0
_SLOWEST = 50e6
"""Bytes a second below which filling or summing up memory counts as stuck."""


class Program:
    """One run of the program at a time.

    Attributes:
        pid: Of the run.
    """

    def __init__(self, folder: Path, size: int) -> None:
        """Name a folder of its own and the bytes of memory."""
        self.pid = 0
        self._folder = folder
        self._answer = folder / ANSWER
        self._errors = folder / "errors"
        self._size = size

    def start(self) -> Answer:
        """Start it and wait until its memory is filled.

        Raises:
            GpusnapError: It ended first.
        """
        me = myself()
        arguments = [str(self._folder), str(self._size), str(me.pid), str(me.start_ticks)]
        with self._errors.open("ab") as errors:
            started = subprocess.run(
                # -P: what lies in the current folder must not be imported, least of all by root.
                [sys.executable, "-P", "-m", _MODULE, *arguments],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                check=True,
            )
        self.pid = int(started.stdout)
        return self._await_answer()

    def ask(self) -> Answer:
        """What it says of its memory now.

        Raises:
            GpusnapError: It ended instead.
        """
        os.kill(self.pid, signal.SIGUSR1)
        return self._await_answer()

    def _await_answer(self) -> Answer:
        process = identity(self.pid)
        seconds = _PATIENCE_S + self._size / _SLOWEST
        _wait(
            lambda: self._answer.exists() or process is None or not alive(process),
            seconds,
            "gave no answer",
        )
        if not self._answer.exists():
            said = self._errors.read_text(errors="replace").splitlines()[-3:]
            raise GpusnapError("The program of the bench ended before its time", details=said)
        answer = msgspec.json.decode(self._answer.read_bytes(), type=Answer)
        self._answer.unlink()
        return answer

    def cpu_us(self) -> int:
        """Processor time that it has taken, since its restore if it was restored."""
        times = psutil.Process(self.pid).cpu_times()
        return round((times.user + times.system) * 1e6)

    def end(self) -> None:
        """Kill it, whoever started or restored it, and wait until it is gone.

        Raises:
            DeadlineError: It does not end.
        """
        for process in psutil.process_iter(["cmdline"]):
            if (process.info["cmdline"] or [])[3:5] == [_MODULE, str(self._folder)]:
                process.kill()
                self.pid = process.pid
                self.await_gone()

    def await_dead(self) -> None:
        """Wait until it has ended and its memory is free, reaped or not.

        Raises:
            DeadlineError: It has not.
        """
        found = identity(self.pid)
        _wait(lambda: found is None or gone(found), _PATIENCE_S, "was killed and still runs")

    def await_gone(self) -> None:
        """Wait until its PID is free again.

        Raises:
            DeadlineError: It is not; nobody reaps what has ended, perhaps.
        """
        _wait(self._is_gone, _PATIENCE_S, "was killed and is still there")

    def _is_gone(self) -> bool:
        # Ours to reap where an interrupt came before subprocess knew of the child
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return identity(self.pid) is None


def _wait(reached: Callable[[], bool], seconds: float, failing: str) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise DeadlineError(f"The program of the bench {failing} after {seconds:.0f} s")
        time.sleep(0.002)
