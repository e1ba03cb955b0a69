"""Saves a job and ends it, because a scheduler's signal says that its time here is over."""

import time
from concurrent.futures import Future

import msgspec

from gpusnap.jobs.charge import Charge
from gpusnap.jobs.process import Job
from gpusnap.jobs.record import RunState, making_snapshot
from gpusnap.jobs.reports import Happening
from gpusnap.jobs.saving import Saving
from gpusnap.jobs.snapshots import note_intact, take
from gpusnap.repository import Snapshot, verify

_RETRY_S = 1.0


class _Asked(msgspec.Struct):
    """A signal that came.

    Attributes:
        number: Which.
        deadline: Until when the job can be saved, of ``time.monotonic``.
        again: When the next attempt is due, likewise.
        over: Whether the time is over, and the job has got the signal.
    """

    number: int
    deadline: float
    again: float
    over: bool = False


class Leaving:
    """The way out, within the time that there is."""

    def __init__(self, charge: Charge, saving: Saving) -> None:
        self._charge = charge
        self._saving = saving
        self._asked: _Asked | None = None

    @property
    def asked(self) -> bool:
        """Whether the signal has come, and the time is not over."""
        return self._asked is not None and not self._asked.over

    def ask(self, number: int) -> None:
        """Hear the signal; further ones change nothing."""
        now = time.monotonic()
        deadline = now + self._charge.options.grace_us / 1e6
        self._asked = self._asked or _Asked(number, deadline, now)

    def turn(self, job: Job) -> None:
        """Try to save the job, or pass the signal on when the time is over."""
        now, asked = time.monotonic(), self._asked
        if asked is None:
            return
        if now >= asked.deadline:
            asked.over = True
            text = "The time to save the job is over: it gets the signal"
            self._charge.report(Happening.NOT_SAVED, text, warning=True)
            self._charge.passed = (asked.number, now)
            job.send(asked.number)
        elif now >= asked.again:
            asked.again = now + _RETRY_S
            left_us = max(1, int((asked.deadline - now) * 1e6))
            self._charge.work.begin(lambda: self._save(job.root.pid, left_us), self._saved)

    def _save(self, pid: int, left_us: int) -> tuple[Snapshot, bool]:
        """In the thread: the last snapshot, and whether it is intact."""
        options = self._charge.options
        snapshot = take(
            self._charge.folder,
            pid,
            plugins=self._charge.plugins,
            leave_running=False,
            timeout_us=min(left_us, options.timeout_us),
            lock_timeout_us=min(left_us, options.lock_timeout_us),
        )
        intact = verify(snapshot, lambda _done, _total: None).intact
        with making_snapshot(self._charge.folder):
            note_intact(self._charge.folder, snapshot.name, intact=intact)
        return snapshot, intact

    def _saved(self, future: Future[tuple[Snapshot, bool]]) -> None:
        try:
            snapshot, intact = future.result()
        except Exception as error:  # noqa: BLE001 - whatever it is, the job runs on
            self._saving.failed(error, "it is tried again while there is time")
            return
        self._charge.drop()
        state = "it was read again and is intact" if intact else "but it is damaged"
        self._charge.report(
            Happening.SAVED,
            f"Saved {snapshot.name} and ended the job; {state}",
            snapshot=str(snapshot.path),
            warning=not intact,
        )
        self.done()

    def done_by(self, code: int | None) -> bool:
        """Whether a job that ended so has left: before it could be saved, but not with success.

        It may have got the signal itself, and programs end at one with all kinds of codes.
        """
        return self._asked is not None and code != 0

    def done(self) -> None:
        """End the supervision; the run can go on."""
        self._charge.note(state=RunState.SAVED, root=None, init=None)
        self._charge.outcome = self._charge.options.resume_code
        text = f"To go on: gpusnap run --name {self._charge.run.name}"
        self._charge.report(Happening.ENDED, text, exit_code=self._charge.outcome)
