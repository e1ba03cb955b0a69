"""Runs the command line and kills someone at a named point of it.

``python -m tests.e2e.faults POINT VICTIM ARGUMENTS...``: a plugin listens to the events, as any
plugin can, and sends SIGKILL at the point. The event is delivered synchronously, so gpusnap
stands exactly there.

Points: ``started:PHASE``, ``finished:PHASE``, ``criu:STAGE``, each with ``+SECONDS`` to strike
so much later, from another thread. Victims: ``gpusnap``, ``criu``, ``worker``, each with
``:SIGNAL`` for another signal than KILL. ``journal`` is no process: its folder is removed.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

from gpusnap.cli import main
from gpusnap.events import CriuNotified, Event, PhaseFinished, PhaseStarted
from gpusnap.hookspecs import hookimpl
from gpusnap.journal import entries, state_directory
from gpusnap.plugins import default_plugins
from gpusnap.target import alive, myself
from gpusnap.worker import workers_of


def point_of(event: Event) -> str | None:
    match event:
        case PhaseStarted(phase=phase):
            return f"started:{phase.value}"
        case PhaseFinished(phase=phase):
            return f"finished:{phase.value}"
        case CriuNotified(script=script):
            return f"criu:{script}"
    return None


def find_victim(victim: str) -> psutil.Process | None:
    if victim == "gpusnap":
        return psutil.Process()
    if victim == "criu":  # which renames itself as it goes; the journal knows it
        noted = [entry.criu for entry, _ in entries() if entry.owner == myself()]
        pids = [criu.pid for criu in noted if criu is not None and alive(criu)]
    else:
        pids = list(workers_of(myself()))
    return psutil.Process(pids[0]) if pids else None


def await_death(victim: psutil.Process) -> None:
    """Wait, but leave its exit status to its parent."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while victim.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)


class Killer:
    def __init__(self, point: str, victim: str, report: Path) -> None:
        self._point, _, delay = point.partition("+")
        self._delay = float(delay or 0)
        self._victim, _, name = victim.partition(":")
        self._signal = signal.Signals[f"SIG{name or 'KILL'}"]
        self._report = report

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        if point_of(event) != self._point:
            return
        self._point = ""  # once
        if self._delay:
            threading.Thread(target=self._strike, daemon=True).start()
        else:
            self._strike()

    def _strike(self) -> None:
        time.sleep(self._delay)
        if self._victim == "journal":
            shutil.rmtree(state_directory())
            self._report.write_text("0")
            return
        victim = find_victim(self._victim)
        if victim is None:
            self._report.write_text("nobody")
            return
        self._report.write_text(str(victim.pid))
        os.kill(victim.pid, self._signal)
        if self._signal is not signal.SIGKILL:
            return
        # A killed process ends a moment later; the point is that it is dead when we go on.
        await_death(victim)


if __name__ == "__main__":
    point, victim, report, *arguments = sys.argv[1:]
    default_plugins().register(Killer(point, victim, Path(report)), "killer")
    sys.argv = ["gpusnap", *arguments]
    main()
