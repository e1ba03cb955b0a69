"""The run that a supervisor has in its charge, and all that it is supervised with."""

import time
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from gpusnap.errors import GpusnapError
from gpusnap.jobs.echo import Echoes
from gpusnap.jobs.process import Job
from gpusnap.jobs.record import Run, RunOptions, RunState, boot_id, write_run
from gpusnap.jobs.reports import Happening, Report, Tell, trouble
from gpusnap.jobs.schedule import Schedule
from gpusnap.jobs.snapshots import newest as newest_of
from gpusnap.jobs.snapshots import newest_number
from gpusnap.jobs.starting import choose_streams, make_files, start
from gpusnap.jobs.work import Work
from gpusnap.plugins import Plugins
from gpusnap.types import ProcessId

_LOOK_S = 0.02


class Charge:
    """One run while it is supervised.

    Attributes:
        job: The job, while it runs.
        passed: The last signal that asks a program to end and was passed on, and when that was.
        ending_since: When the job was last about to be ended by a checkpoint, or 0.
        outcome: What gpusnap exits with; None as long as it goes on.
    """

    def __init__(
        self, folder: Path, run: Run, tell: Tell, plugins: Plugins, stack: ExitStack
    ) -> None:
        self.folder = folder
        self.run = run
        self.plugins = plugins
        self.streams = choose_streams()
        self.echoes = Echoes(folder)
        stack.callback(self.echoes.finish)
        self.work = Work()
        self.schedule = Schedule(run.options, time.monotonic())
        self.job: Job | None = None
        self.passed: tuple[int, float] | None = None
        self.ending_since = 0.0
        self.outcome: int | None = None
        self._tell = tell
        self._newest_before = 0

    @property
    def options(self) -> RunOptions:
        """What the user asked for."""
        return self.run.options

    @property
    def started_it(self) -> bool:
        """Whether gpusnap started the job; of another it passes no signals on."""
        return bool(self.run.command)

    def report(  # noqa: PLR0913 - the fields of a report
        self,
        happening: Happening,
        text: str,
        *,
        warning: bool = False,
        cure: str | None = None,
        pid: int | None = None,
        snapshot: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        """Tell the user what happens."""
        report = Report(
            run=self.run.name,
            happening=happening,
            text=text,
            warning=warning,
            cure=cure,
            pid=pid,
            snapshot=snapshot,
            exit_code=exit_code,
        )
        self._tell(report)

    def trouble(self, happening: Happening, text: str, error: BaseException) -> None:
        """Tell the user of an error."""
        self._tell(trouble(self.run.name, happening, text, error))

    def note(self, **changes: object) -> None:
        """Write down how far the run is; a full disk must not end the supervision."""
        self.run = msgspec.structs.replace(self.run, **changes)
        try:
            write_run(self.folder, self.run)
        except GpusnapError as error:
            self.trouble(Happening.RISK, "The run's state could not be noted", error)

    def start(self) -> None:
        """Start the command from its beginning.

        Raises:
            GpusnapError: It cannot be started, or the run folder cannot be written to.
        """
        self.echoes.rewind_all()
        make_files(self.folder)
        self.echoes.open(at_end=False)
        self.note(root=None, init=None, boot_id=boot_id(), state=RunState.RUNNING)
        root = start(self.run, self.folder, self.streams)
        self.follow(root)
        self.note(root=root)
        text = f"Run {self.run.name} begins with process {root.pid}"
        self.report(Happening.STARTED, text, pid=root.pid)

    def follow(self, root: ProcessId, init: ProcessId | None = None) -> Job:
        """Have a job that runs; a signal that came while there was none is for it.

        Raises:
            ProcessLookupError: It is gone.
        """
        self.job = Job(root, init)
        self._newest_before = self.newest
        self.schedule.tried(time.monotonic())
        if self.started_it and self.passed is not None and self.passed[1] >= self.ending_since:
            self.job.send(self.passed[0])
        return self.job

    def drop(self) -> None:
        """Forget a job that a checkpoint has ended, or is about to have ended."""
        if self.job is not None:
            while not self.job.ended():
                # What has left its tree, and so was not saved, must not hold the run up
                self.job.end_rest()
                time.sleep(_LOOK_S)
            self.job.close()
            self.job = None
            self.echoes.drain()

    @property
    def newest(self) -> int:
        """The number of the newest complete snapshot; 0 where there is none."""
        with suppress(GpusnapError):
            return newest_number(self.folder, self.run)
        return 0

    @property
    def saved_since(self) -> bool:
        """Whether a snapshot was completed since the job was last started or brought back."""
        return self.newest > self._newest_before

    @property
    def ended_by_checkpoint(self) -> bool:
        """Whether the newest snapshot has ended the job, such as one that it made of itself."""
        snapshot = newest_of(self.folder, self.run)
        return self.saved_since and snapshot is not None and not snapshot.manifest.left_running
