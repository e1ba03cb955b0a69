"""Programs that save themselves, started as a user would start them."""

import sys
from dataclasses import dataclass
from pathlib import Path

from gpusnap.target import identity
from gpusnap.types import ProcessId
from tests.e2e.jobs import PATIENCE_S, Site, await_true, becomes_true, start_detached
from tests.pids import kill

ROOT = Path(__file__).parents[2]

PRELUDE = """
import os, sys, time
import gpusnap
from gpusnap.errors import GpusnapError

log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def say(*words):
    os.write(log, (" ".join(map(str, words)) + "\\n").encode())

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)

def attempt(**options):
    try:
        return gpusnap.checkpoint_self(**options)
    except GpusnapError as error:
        say(type(error).__name__, error.text)
"""

STRIKER = """
# Loaded by every Python that is started: does something to the helper at a point of its work.
import os, sys
if sys.orig_argv[-2:] == ["gpusnap.inprocess.helper", "serve"] and os.path.exists({plan!r}):
    import signal, time
    from gpusnap.hookspecs import hookimpl
    from gpusnap.plugins import default_plugins
    from tests.e2e.faults import point_of

    point, action, program = open({plan!r}).read().split()

    class Striker:
        @hookimpl
        def gpusnap_event(self, event):
            if point_of(event) == point and action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if point_of(event) == point and action == "interrupt":
                os.kill(int(program), signal.SIGINT)
                time.sleep(60)

    default_plugins().register(Striker(), "striker")
"""
"""A sitecustomize for a point, an action and the program's PID in a file."""


@dataclass
class Program:
    """A program in a folder of its own that logs what it comes to know."""

    site: Site
    process: ProcessId
    log: Path

    @classmethod
    def start(cls, site: Site, source: str, *before: str) -> "Program":
        """Start it as init's child; ``before`` is a command that runs it."""
        log, script = site.folder / "log", site.folder / "program.py"
        script.write_text(PRELUDE.format(log=str(log)) + source)
        pid_file, errors = site.folder / "pid", site.folder / "errors"
        plan = site.folder / "strike" / "plan"
        plan.parent.mkdir()
        (plan.parent / "sitecustomize.py").write_text(STRIKER.format(plan=str(plan)))
        environment = {**site.environment, "PYTHONPATH": f"{plan.parent}:{ROOT}"}
        shell = ["sh", "-c", f'exec "$@" 2>"{errors}"', "sh"]
        start_detached([*shell, *before, sys.executable, str(script)], pid_file, environment)
        process = identity(int(pid_file.read_text()))
        assert process is not None
        return cls(site, process, log)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def says(self, line: str, times: int = 1) -> None:
        """Wait until it has."""
        said = becomes_true(lambda: self.lines.count(line) >= times, 2 * PATIENCE_S)
        assert said, f"{line!r} not among {self.lines}: {(self.site.folder / 'errors').read_text()}"

    def end(self) -> None:
        """Kill it, also if it is one that was restored."""
        found = identity(self.pid)
        if found is not None:
            kill(self.pid)
        await_true(lambda: identity(self.pid) is None, "the PID is free")
