"""Stands beside a job: saves it in time, brings it back, and ends as it ends."""

import contextlib
import os
import select
import shutil
import signal
import time
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

from gpusnap.errors import GpusnapError
from gpusnap.jobs.charge import Charge
from gpusnap.jobs.comeback import Comeback
from gpusnap.jobs.control import Control
from gpusnap.jobs.doctor import Doctor
from gpusnap.jobs.health import Seen, all_devices
from gpusnap.jobs.inbox import ENDING, Inbox, from_keyboard
from gpusnap.jobs.leaving import Leaving
from gpusnap.jobs.opening import Beginning, Request, living, name_of, open_run
from gpusnap.jobs.process import Job, become_subreaper, reap_orphans
from gpusnap.jobs.record import Run, RunState, boot_id, run_folder, supervising
from gpusnap.jobs.reports import Findings, Happening, Report, Tell, announced
from gpusnap.jobs.saving import Saving
from gpusnap.jobs.snapshots import newest
from gpusnap.metrics.server import serving
from gpusnap.plugins import Plugins, default_plugins

_TURN_S = 0.1
_ENDS_WITHIN_S = 60.0
"""How long after a signal that ends programs an end is taken for what the signal asked for."""
_KILLED = 128 + signal.SIGKILL


def supervise(request: Request, tell: Tell, plugins: Plugins | None = None) -> int:
    """Run a command as a job that survives, or go on with one, until it has ended.

    Call it in the main thread of a process that has no other children.

    Args:
        request: What the user wants.
        tell: Hears what happens; from one thread at a time.
        plugins: The plugins to use; the installed ones by default.

    Returns:
        What to exit with: what the job ended with, 128+N for signal N, or the run's
        ``resume_code`` where it was saved and ended because of a signal.

    Raises:
        GpusnapError: There is no such run or command, or the job could not be brought back; its
            snapshots are as they were.
    """
    folder = run_folder(name_of(request))
    with supervising(folder), Inbox() as inbox, ExitStack() as stack:
        opened = open_run(request, folder)
        if opened.beginning is Beginning.OVER:
            tell(_over(opened.run, folder))
            return opened.run.exit_code or 0
        become_subreaper()
        plugins = plugins or default_plugins()
        tell = announced(tell, plugins.emit)
        findings = Findings(opened.run.name, tell)
        plugins.register(findings, f"run-findings-{opened.run.name}")
        stack.callback(plugins.unregister, findings)
        charge = Charge(folder, opened.run, tell, plugins, stack)
        control = stack.enter_context(contextlib.closing(Control(folder, plugins)))
        stack.enter_context(serving(plugins.emit))
        return Supervisor(charge, control).run(opened.beginning, inbox)


def _over(run: Run, folder: Path) -> Report:
    cure = "Use --fresh to let it begin anew"
    snapshot = newest(folder, run) if run.exit_code else None
    if snapshot is not None:
        cure += f"; gpusnap restore {snapshot.path} goes on from its newest snapshot"
    return Report(
        run=run.name,
        happening=Happening.ENDED,
        text=f"Run {run.name} has ended before, with exit code {run.exit_code}",
        cure=cure,
        exit_code=run.exit_code,
    )


class Supervisor:
    """Supervises one run; it does one thing at a time, and hears signals meanwhile."""

    def __init__(self, charge: Charge, control: Control) -> None:
        self._charge = charge
        self._control = control
        self._doctor = Doctor(charge.options)
        self._saving = Saving(charge)
        self._leaving = Leaving(charge, self._saving)
        self._comeback = Comeback(charge, self._doctor)

    def run(self, beginning: Beginning, inbox: Inbox) -> int:
        """Go on until the job has ended; returns what gpusnap exits with."""
        self._begin(beginning)
        while self._charge.outcome is None:
            self._wait()
            for number in inbox.take():
                self._signalled(number)
            self._turn()
        return self._charge.outcome

    def _begin(self, beginning: Beginning) -> None:
        if self._doctor.limits:
            self._doctor.remember(all_devices(self._charge.plugins))
        if beginning is Beginning.START:
            self._start()
            return
        self._charge.echoes.open(at_end=True)
        if beginning is Beginning.ADOPT:
            self._adopt()

    def _start(self) -> None:
        try:
            self._charge.start()
        except GpusnapError:
            # A run that never began need not be known
            shutil.rmtree(self._charge.folder, ignore_errors=True)
            raise

    def _adopt(self) -> None:
        charge = self._charge
        root = living(charge.run, charge.folder)
        if root is None:  # it has ended this instant: it is brought back
            return
        try:
            charge.follow(root, charge.run.init)
        except ProcessLookupError:  # the same, an instant later
            return
        charge.note(root=root, boot_id=boot_id(), state=RunState.RUNNING)
        text = f"Run {charge.run.name} goes on with process {root.pid}"
        charge.report(Happening.ADOPTED, text, pid=root.pid)

    def _wait(self) -> None:
        """Wait for a signal, the end of the job, or the next turn."""
        job, busy = self._charge.job, self._charge.work.busy
        select.select([job.handle] if job is not None and not busy else [], [], [], _TURN_S)

    def _signalled(self, number: int) -> None:
        charge = self._charge
        if charge.options.on_signal == signal.Signals(number).name.removeprefix("SIG"):
            self._leaving.ask(number)
            return
        if charge.started_it and charge.job is not None:
            shared = charge.job.beside and from_keyboard(number)
            if not shared:
                _send(charge.job, number)
        if number in ENDING:
            charge.passed = (number, time.monotonic())
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _turn(self) -> None:
        charge = self._charge
        if charge.work.busy:
            charge.work.settle()
            return
        reap_orphans(charge.job)
        if charge.job is None:
            self._turn_without_job()
        elif charge.job.ended():
            self._ended(charge.job)
        elif self._leaving.asked:
            self._leaving.turn(charge.job)
        else:
            self._routine(charge.job)

    def _turn_without_job(self) -> None:
        if self._leaving.asked:
            self._leaving.done()
        elif self._charge.passed is not None:
            self._charge.outcome = 128 + self._charge.passed[0]
        else:
            self._comeback.turn()

    def _routine(self, job: Job) -> None:
        charge = self._charge
        if charge.passed is not None and not charge.started_it:
            self._leave_alone(128 + charge.passed[0])
            return
        if charge.echoes.broken and charge.passed is None:
            job.send(signal.SIGPIPE)
            charge.passed = (signal.SIGPIPE, time.monotonic())
        if self._doctor.due(time.monotonic()):
            charge.work.begin(self._doctor.looking(job.root.pid, charge.plugins), self._looked)
        elif (answer := self._control.asked()) is not None:
            charge.work.begin(answer)
        else:
            self._saving.turn(job)

    def _leave_alone(self, code: int) -> None:
        """Stop watching a job that is somebody else's."""
        name = self._charge.run.name
        self._charge.outcome = code
        text = f"The job runs on without gpusnap; to go on watching it: gpusnap run --name {name}"
        self._charge.report(Happening.ENDED, text, exit_code=code)

    def _ended(self, job: Job) -> None:
        job.close()
        self._charge.job = None
        self._charge.echoes.drain()
        code = job.code
        by_checkpoint = code in {None, _KILLED} and self._charge.ended_by_checkpoint
        if by_checkpoint or self._leaving.done_by(code):
            self._leaving.done()
        elif code is not None and (code == 0 or self._was_asked_for(code)):
            self._finish(code)
        else:
            self._crashed(code)

    def _crashed(self, code: int | None) -> None:
        self._charge.passed = None
        if not self._comeback.after_crash(code):
            self._finish(GpusnapError.exit_code if code is None else code)

    def _was_asked_for(self, code: int) -> bool:
        if self._charge.passed is None:
            return False
        number, when = self._charge.passed
        return code == 128 + number or time.monotonic() - when < _ENDS_WITHIN_S

    def _finish(self, code: int) -> None:
        self._charge.note(state=RunState.ENDED, exit_code=code)
        self._charge.outcome = code
        text = f"Run {self._charge.run.name} has ended with exit code {code}"
        self._charge.report(Happening.ENDED, text, exit_code=code)

    def _looked(self, future: Future[Seen]) -> None:
        """Hear how the devices are, and act where one has become worse."""
        charge = self._charge
        self._doctor.look_again()
        try:
            diagnosis = self._doctor.looked(future.result())
        except GpusnapError:  # the job may just have ended; the next look will tell
            return
        for fault in diagnosis.faults:
            text = f"Device {fault.index} ({fault.uuid}) has become worse: {fault.text}"
            charge.report(Happening.FAULT, text, warning=True)
        if not diagnosis.faults or charge.job is None:
            return
        moves = charge.options.move_on_fault
        if moves and not diagnosis.room:
            text = "No healthy device is left to move the job to: it is saved and stays"
            charge.report(Happening.RISK, text, warning=True)
        then = self._comeback.soon if moves and diagnosis.room else None
        self._saving.save(charge.job, then)


def _send(job: Job, number: int) -> None:
    """Send the job a signal, as a terminal or a user would."""
    # The kernel ignores Ctrl-Z for a session without a shell
    sent = signal.SIGSTOP if number == signal.SIGTSTP else number
    job.send(sent, group=number in {signal.SIGINT, signal.SIGQUIT})
