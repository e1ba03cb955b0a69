"""Runs the command line and strikes someone at a named point of it.

``python -m tests.e2e.faults POINT VICTIM REPORT ARGUMENTS...``: a plugin listens to the events, as
any plugin can, and sends SIGKILL at the point. The event is delivered synchronously, so gpusnap
stands exactly there. REPORT is a file that gets the PID of who was hit.

Points: ``started:PHASE``, ``finished:PHASE``, ``criu:STAGE``, each with ``+SECONDS`` to strike
so much later, from another thread. Victims: ``gpusnap``, ``criu``, ``worker``, ``target``, each
with ``:SIGNAL`` for another signal than KILL. ``journal`` is no process: its folder is removed.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from gpusnap.cli import main
from gpusnap.events import CriuNotified, Event, PhaseFinished, PhaseStarted
from gpusnap.hookspecs import hookimpl
from gpusnap.journal import entries, state_directory
from gpusnap.plugins import default_plugins
from gpusnap.target import alive, myself
from gpusnap.testing import SIM_VARIABLE
from gpusnap.types import ProcessId
from gpusnap.worker import workers_of

VICTIMS = ("gpusnap", "worker", "criu", "target", "journal")
SIMULATED = "simulated"


def point_of(event: Event) -> str | None:
    match event:
        case PhaseStarted(phase=phase):
            return f"started:{phase.value}"
        case PhaseFinished(phase=phase):
            return f"finished:{phase.value}"
        case CriuNotified(script=script):
            return f"criu:{script}"
    return None


def find_victim(victim: str, owner: ProcessId, target: int | None = None) -> psutil.Process | None:
    """Someone who takes part in the operation of a gpusnap, by name; None if there is nobody."""
    pids: Sequence[int]
    match victim:
        case "gpusnap":
            pids = [owner.pid] if alive(owner) else []
        case "criu":  # which renames itself as it goes; the journal knows it
            noted = [entry.criu for entry, _ in entries() if entry.owner == owner]
            pids = [criu.pid for criu in noted if criu is not None and alive(criu)]
        case "worker":
            pids = workers_of(owner)
        case _:
            pids = [target] if target is not None else []
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pids[0]) if pids else None
    return None


def await_death(victim: psutil.Process) -> None:
    """Wait, but leave its exit status to its parent."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while victim.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)


class Killer:
    def __init__(self, point: str, victim: str, report: Path, target: int | None = None) -> None:
        self._point, _, delay = point.partition("+")
        self._delay = float(delay or 0)
        self._victim, _, name = victim.partition(":")
        self._signal = signal.Signals[f"SIG{name or 'KILL'}"]
        self._report = report
        self._target = target

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
        victim = find_victim(self._victim, myself(), self._target)
        if victim is None:
            self._report.write_text("nobody")
            return
        self._report.write_text(str(victim.pid))
        with contextlib.suppress(ProcessLookupError):  # struck later, it may have ended by then
            os.kill(victim.pid, self._signal)
        if self._signal is not signal.SIGKILL:
            return
        # A killed process ends a moment later; the point is that it is dead when we go on.
        await_death(victim)


class Census:
    """Writes down each point of an operation, and who could be struck there."""

    def __init__(self, report: Path, target: int | None = None) -> None:
        self._report = report
        self._target = target

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        point = point_of(event)
        if point is None:
            return
        present = [victim for victim in VICTIMS if self._is_there(victim)]
        with self._report.open("a") as report:
            report.write(json.dumps([point, present]) + "\n")

    def _is_there(self, victim: str) -> bool:
        if victim == "journal":
            return any(entry.owner == myself() for entry, _ in entries())
        return find_victim(victim, myself(), self._target) is not None


def leave_one_backend() -> None:
    """On a simulated machine the worker that is struck must be the simulated backend's."""
    if SIM_VARIABLE not in os.environ:
        return
    plugins = default_plugins()
    for backend in plugins.backends():
        if backend.name != SIMULATED:
            plugins.unregister(backend._plugin)


def listen(listener: Killer | Census | None) -> None:
    """Have someone listen to the events of this process, if anyone."""
    leave_one_backend()
    if listener is not None:
        default_plugins().register(listener, "listener")


if __name__ == "__main__":
    point, victim, report, *arguments = sys.argv[1:]
    listen(Killer(point, victim, Path(report)))
    sys.argv = ["gpusnap", *arguments]
    main()
