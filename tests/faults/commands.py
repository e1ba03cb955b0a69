"""gpusnap's command line with a fault."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.faults import Census, Killer, listen
from tests.e2e.jobs import Site
from tests.e2e.loaded import Ended, Running


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

    def run(self, *arguments: object, listener: Killer | Census | None = None) -> Ended:
        prepare = functools.partial(listen, listener)
        ended = Running(self.site.environment, self.site.folder, arguments, prepare).wait()
        assert "Traceback" not in ended.errors, ended.errors
        return ended

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
        ended = self.run(*arguments, listener=killer)
        hit = report.read_text() if report.exists() else "never"
        return Struck(ended.code, ended.output, ended.errors, point, victim, hit)

    def census(self, *arguments: object, target: int) -> dict[str, list[str]]:
        """Run undisturbed; returns each point that was passed and who was there."""
        report = self._new_report()
        ended = self.run(*arguments, listener=Census(report, target))
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
