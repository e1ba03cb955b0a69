"""Brings a job back that crashed, or that is to go on elsewhere."""

import time
from concurrent.futures import Future
from pathlib import Path

from gpusnap.errors import GpusnapError
from gpusnap.jobs.charge import Charge
from gpusnap.jobs.doctor import Doctor
from gpusnap.jobs.outputs import Length
from gpusnap.jobs.record import RunState, boot_id
from gpusnap.jobs.reports import Happening
from gpusnap.jobs.returning import bring_back
from gpusnap.jobs.schedule import Backoff
from gpusnap.jobs.snapshots import Taken
from gpusnap.restore import RestoredTarget
from gpusnap.target import identity
from gpusnap.types import ProcessId

_RETURNS = 3
"""How often a return is tried at least: the job is gone, and its snapshot is there."""


class Comeback:
    """The attempts to bring a job back, one after the other."""

    def __init__(self, charge: Charge, doctor: Doctor) -> None:
        self._charge = charge
        self._doctor = doctor
        self._backoff = Backoff(charge.options.restart_delay_us / 1e6)
        self._at = 0.0

    def soon(self) -> None:
        """Have the job come back at once."""
        self._at = time.monotonic()

    def after_crash(self, code: int | None) -> bool:
        """Have the job come back after a while; False where that was tried often enough."""
        if self._charge.saved_since:
            self._backoff.reset()
        how = "and nobody can tell how" if code is None else f"with exit code {code}"
        text = f"The job of run {self._charge.run.name} has ended {how}"
        again = self._backoff.attempts < self._charge.options.restart
        if again:
            delay = self._backoff.next_delay()
            self._at = time.monotonic() + delay
            text = f"{text}; it is brought back in {delay:g} s"
        self._charge.report(Happening.CRASHED, text, warning=True, exit_code=code)
        return again

    def turn(self) -> None:
        """Begin the attempt that is due."""
        if time.monotonic() >= self._at:
            self._charge.work.begin(self._bring_back, self._returned)

    def _bring_back(self) -> RestoredTarget | None:
        """In the thread: restore the newest intact snapshot."""
        charge = self._charge
        devices = self._doctor.choice(charge.plugins)
        return bring_back(charge.folder, charge.plugins, devices, self)

    def cleared(self) -> None:
        """Have whoever goes on with the run, if gpusnap is killed, look for what came back."""
        self._charge.note(root=None, init=None, state=RunState.RUNNING)

    def restored(self, root: ProcessId, init: ProcessId | None) -> None:
        """Note who it is before it lives without gpusnap: copies of the job look the same."""
        self._charge.note(root=root, init=init, boot_id=boot_id())

    def passed_over(self, taken: Taken, error: GpusnapError) -> None:
        """Tell of a damaged snapshot."""
        text = f"Snapshot {taken.name} is passed over"
        self._charge.trouble(Happening.NOT_RESTORED, text, error)

    def cutting(self, lengths: tuple[Length, ...]) -> None:
        """Have text that comes again not passed on again."""
        self._charge.echoes.rewind(lengths)

    def _returned(self, future: Future[RestoredTarget | None]) -> None:
        try:
            target = future.result()
        except Exception as error:  # noqa: BLE001 - the snapshot is there, whatever it was
            self._failed(error)
            return
        if target is None:
            self._start_anew()
        else:
            self._follow(target)

    def _follow(self, target: RestoredTarget) -> None:
        charge = self._charge
        init = identity(target.init_pid) if target.init_pid is not None else None
        # Of a root that has ended already its init has the exit code
        first = (each for each in target.processes if each.pid == target.root_pid)
        root = next(first, init)
        if root is None:
            self._failed(GpusnapError("It ended right after its restore"))
            return
        changes = {"root": root, "init": init, "boot_id": boot_id()}
        charge.note(**changes, restarts=charge.run.restarts + 1)
        try:
            charge.follow(root, init)
        except ProcessLookupError as error:
            self._failed(error)
            return
        charge.schedule.saved(time.monotonic(), time.monotonic())
        charge.report(
            Happening.RESTORED,
            f"Restored {Path(target.snapshot).name}: process {root.pid} goes on",
            pid=root.pid,
            snapshot=target.snapshot,
        )

    def _start_anew(self) -> None:
        if not self._charge.started_it:
            raise GpusnapError(
                f"Run {self._charge.run.name} has no intact snapshot, and gpusnap did not start "
                "its job",
                cure="Start it again, with gpusnap run",
            )
        self._charge.start()
        self._charge.note(restarts=self._charge.run.restarts + 1)

    def _failed(self, error: Exception) -> None:
        if self._doctor.give_up_choice():
            text = "The job could not be brought back on other devices: its own are tried"
            self._charge.trouble(Happening.NOT_RESTORED, text, error)
            return
        if self._backoff.attempts >= max(self._charge.options.restart, _RETURNS):
            raise error
        delay = self._backoff.next_delay()
        self._at = time.monotonic() + delay
        text = f"The job could not be brought back, which is tried again in {delay:g} s"
        self._charge.trouble(Happening.NOT_RESTORED, text, error)
