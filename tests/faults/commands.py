"""gpusnap's command line, forked from a process that has it loaded.

Starting Python and loading gpusnap takes longer than a checkpoint of a small target, and a
matrix of faults is hundreds of commands.
"""

import contextlib
import json
import multiprocessing
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from tests.e2e.faults import Census, Killer, be_gpusnap
from tests.e2e.jobs import Site

_PATIENCE_S = 180.0
_LOADED = ["tests.e2e.faults", "gpusnap.testing.backend", "gpusnap_amd", "gpusnap_nvidia"]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_LOADED)


@dataclass(frozen=True)
class Ended:
    """A command that ended, with a negative code if by a signal."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True)
class Struck(Ended):
    """A command during which a fault was to happen."""

    point: str
    victim: str
    hit: str
    """The PID of who was hit, ``nobody``, or ``never`` where the point was not reached."""


class Commands:
    """Runs gpusnap on a site, one command at a time."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def start(self, *arguments: object, listener: Killer | Census | None = None) -> "Running":
        for name in ("stdout", "stderr"):
            (self.site.folder / name).write_text("")
        typed = [str(argument) for argument in arguments]
        given = (self.site.environment, self.site.folder, listener, typed)
        process = _CONTEXT.Process(target=be_gpusnap, args=given, daemon=True)
        process.start()
        return Running(process, self.site.folder)

    def run(self, *arguments: object) -> Ended:
        return self.start(*arguments).wait()

    def succeed(self, *arguments: object) -> str:
        """Run what must succeed; returns its output."""
        ended = self.run(*arguments)
        assert ended.code == 0, f"{arguments[0]}: {ended.output}{ended.errors}"
        return ended.output

    def strike(
        self, point: str, victim: str, *arguments: object, target: int | None = None
    ) -> Struck:
        report = self._new_report()
        killer = Killer(point, victim, report, target)
        ended = self.start(*arguments, listener=killer).wait()
        hit = report.read_text() if report.exists() else "never"
        return Struck(ended.code, ended.output, ended.errors, point, victim, hit)

    def census(self, *arguments: object, target: int) -> dict[str, list[str]]:
        """Run undisturbed; returns each point that was passed and who was there."""
        report = self._new_report()
        ended = self.start(*arguments, listener=Census(report, target)).wait()
        assert ended.code == 0, ended.errors
        passed = [json.loads(line) for line in report.read_text().splitlines()]
        found: dict[str, list[str]] = {}
        for point, present in passed:
            found.setdefault(point, present)  # a killer strikes the first time
        return found

    def _new_report(self) -> Path:
        report = self.site.folder / "report"
        report.unlink(missing_ok=True)
        return report


class Running:
    """A command under way."""

    def __init__(self, process: ForkServerProcess, folder: Path) -> None:
        self._process = process
        self._folder = folder
        assert process.pid is not None
        self.pid = process.pid

    def wait(self) -> Ended:
        self._process.join(_PATIENCE_S)
        code = self._process.exitcode
        if code is None:
            self._end_all()
            msg = f"gpusnap (PID {self.pid}) hangs"
            raise AssertionError(msg)
        self._process.close()
        output, errors = (self._folder / name for name in ("stdout", "stderr"))
        ended = Ended(code, output.read_text(), errors.read_text())
        assert "Traceback" not in ended.errors, ended.errors
        return ended

    def _end_all(self) -> None:
        """End what hangs, for the next strike to begin afresh."""
        gpusnap = psutil.Process(self.pid)
        for process in (*gpusnap.children(recursive=True), gpusnap):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
