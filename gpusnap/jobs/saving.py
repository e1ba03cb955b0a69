"""Saves a job at intervals, and tells in time what would stand in the way."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future

from gpusnap.jobs.charge import Charge
from gpusnap.jobs.process import Job
from gpusnap.jobs.reports import Happening
from gpusnap.jobs.snapshots import checkpoint_options, ledger_time, take
from gpusnap.plan import plan_checkpoint
from gpusnap.repository import Snapshot
from gpusnap.types import Severity

_CHECK_AFTER_S = 5.0
"""How long after its beginning a job is looked at: it then has what it works with."""


class Saving:
    """The snapshots of a job that runs on, or goes to other devices."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self._check_at = time.monotonic() + _CHECK_AFTER_S
        self._changed = 0
        self._newest = 0

    def turn(self, job: Job) -> None:
        """Do what is due."""
        now = time.monotonic()
        charge = self._charge
        self._notice(now)
        if (risk := charge.schedule.risk(now)) is not None:
            charge.report(Happening.RISK, risk, warning=True)
        if now >= self._check_at:
            self._check_at = math.inf
            charge.work.begin(lambda: self._check(job.root.pid))
        elif charge.schedule.due(now):
            self.save(job)

    def _notice(self, now: float) -> None:
        """Notice the snapshots that a job makes of itself, by the run's list of them."""
        changed = ledger_time(self._charge.folder)
        if changed != self._changed:
            self._changed = changed
            number = self._charge.newest
            if number > self._newest:
                self._newest = number
                self._charge.schedule.saved(now, now)

    def _check(self, pid: int) -> None:
        """In the thread: tell now what would keep the job from being saved in half an hour."""
        run, plugins = self._charge.run, self._charge.plugins
        options = checkpoint_options(run, incremental=run.options.incremental is not False)
        plan = plan_checkpoint(pid, repository=run.repository, options=options, plugins=plugins)
        for finding in plan.findings:
            if finding.severity is Severity.ERROR:
                text = f"As it is now it could not be saved: {finding.text} [{finding.code}]"
                self._charge.report(Happening.RISK, text, warning=True, cure=finding.cure)

    def save(self, job: Job, then: Callable[[], None] | None = None) -> None:
        """Save it.

        Args:
            job: The job.
            then: What follows where the job was saved and ended; None lets it run on.
        """
        began = time.monotonic()
        if then is not None:
            self._charge.ending_since = began
        folder, plugins = self._charge.folder, self._charge.plugins
        self._charge.work.begin(
            lambda: take(folder, job.root.pid, plugins=plugins, leave_running=then is None),
            lambda future: self._saved(future, began, then),
        )

    def _saved(
        self, future: Future[Snapshot], began: float, then: Callable[[], None] | None
    ) -> None:
        now = time.monotonic()
        self._charge.schedule.tried(now)
        try:
            snapshot = future.result()
        except Exception as error:  # noqa: BLE001 - whatever it is, the job runs on
            self.failed(error, "the job runs on")
            return
        self._charge.schedule.saved(began, now)
        frozen = snapshot.manifest.frozen_us / 1e6
        text = f"Saved {snapshot.name}; the job stood still for {frozen:.3g} s"
        self._charge.report(Happening.SAVED, text, snapshot=str(snapshot.path))
        if then is not None:
            self._charge.drop()
            then()

    def failed(self, error: BaseException, outcome: str) -> None:
        """Tell that a snapshot could not be made, unless the job simply came to its end."""
        if self._charge.job is None or not self._charge.job.ended():
            text = f"No snapshot could be made, and {outcome}"
            self._charge.trouble(Happening.NOT_SAVED, text, error)
