"""gpusnap's command line, forked from a process that has it loaded.

Starting Python and loading gpusnap takes longer than a checkpoint of a small target, and the tests
run hundreds of commands. Nothing but the start differs from a command that was typed.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NoReturn

import psutil

from gpusnap.cli._main import run

_PATIENCE_S = 180.0
_LOADED = ["tests.e2e.faults", "gpusnap.testing.backend", "gpusnap_amd", "gpusnap_nvidia"]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_LOADED)


def nothing() -> None:
    """For commands before which there is nothing to do."""


@dataclass(frozen=True)
class Ended:
    """A command that ended, with a negative code if by a signal."""

    code: int
    output: str
    errors: str


class Running:
    """A command under way."""

    def __init__(
        self,
        environment: Mapping[str, str],
        streams: Path,
        arguments: Sequence[object],
        prepare: Callable[[], None] = nothing,
    ) -> None:
        """Start it.

        Args:
            environment: Its environment.
            streams: A folder for what it prints.
            arguments: What is typed after ``gpusnap``.
            prepare: Called in its process first.
        """
        self._streams = [streams / name for name in ("stdout", "stderr")]
        for stream in self._streams:
            stream.write_text("")
        typed = [str(argument) for argument in arguments]
        given = (environment, self._streams, prepare, typed)
        self._process: ForkServerProcess = _CONTEXT.Process(
            target=_be_gpusnap, args=given, daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def wait(self) -> Ended:
        self._process.join(_PATIENCE_S)
        code = self._process.exitcode
        if code is None:
            self._end_all()
            msg = f"gpusnap (PID {self.pid}) hangs"
            raise AssertionError(msg)
        self._process.close()
        return Ended(code, *(stream.read_text() for stream in self._streams))

    def _end_all(self) -> None:
        """End what hangs, for the next command to begin afresh."""
        gpusnap = psutil.Process(self.pid)
        for process in (*gpusnap.children(recursive=True), gpusnap):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _be_gpusnap(
    environment: Mapping[str, str],
    streams: Sequence[Path],
    prepare: Callable[[], None],
    arguments: Sequence[str],
) -> NoReturn:
    os.environ.clear()
    os.environ.update(environment)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for number, path in enumerate((Path(os.devnull), *streams)):
        os.dup2(os.open(path, os.O_RDWR), number)
    prepare()
    sys.exit(run(arguments))
