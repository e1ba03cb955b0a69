"""A checkpoint and a restore, by gpusnap and by CRIU alone."""

import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from gpusnap.bench.report import Trip
from gpusnap.bench.target import Program
from gpusnap.checkpoint import create_checkpoint
from gpusnap.criu import DumpRequest, RestoreRequest, Session, find_criu
from gpusnap.errors import IntegrityError
from gpusnap.events import Event, PhaseFinished
from gpusnap.hookspecs import hookimpl
from gpusnap.plan import DEFAULT_TIMEOUT_US
from gpusnap.plugins import Plugins
from gpusnap.repository import PhaseTime
from gpusnap.restore import restore_checkpoint


class Way(Protocol):
    """One way to save a process and bring it back."""

    name: str
    folder: Path

    def checkpoint(self, program: Program) -> None:
        """Save it and end it; when this returns it is dead."""

    def restore(self) -> None:
        """Bring it back."""

    def phases(self) -> tuple[PhaseTime, ...]:
        """The steps since the last call."""


class ByGpusnap:
    """The calls that users make, with all they check."""

    name = "gpusnap"

    def __init__(
        self, folder: Path, plugins: Plugins, *, compress: str, workers: int | None
    ) -> None:
        self.folder = folder / "gpusnap"
        self._plugins = plugins
        self._compress = compress
        self._workers = workers
        self._times: list[PhaseTime] = []

    def checkpoint(self, program: Program) -> None:
        """See :class:`Way`."""
        create_checkpoint(
            program.pid,
            "bench",
            repository=self.folder,
            leave_running=False,
            compress=self._compress,
            parallel_workers=self._workers,
            plugins=self._plugins,
        )
        program.await_dead()

    def restore(self) -> None:
        """See :class:`Way`."""
        restore_checkpoint("bench", repository=self.folder, plugins=self._plugins)

    def phases(self) -> tuple[PhaseTime, ...]:
        """See :class:`Way`."""
        times, self._times = tuple(self._times), []
        return times

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        """Keep the times of steps."""
        if isinstance(event, PhaseFinished):
            self._times.append(PhaseTime(phase=event.phase, microseconds=event.microseconds))


class ByCriu:
    """The same CRIU, without gpusnap's plugin or any other."""

    name = "CRIU alone"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "criu"
        self._criu = find_criu()

    def checkpoint(self, program: Program) -> None:
        """See :class:`Way`."""
        self.folder.mkdir()
        request = DumpRequest(
            pid=program.pid,
            images=self.folder,
            work=self.folder,
            leave_running=False,
            timeout_us=DEFAULT_TIMEOUT_US,
        )
        with Session(self._criu) as session:
            session.dump(request, _agree)
        program.await_dead()

    def restore(self) -> None:
        """See :class:`Way`."""
        request = RestoreRequest(
            images=self.folder, work=self.folder, timeout_us=DEFAULT_TIMEOUT_US
        )
        with Session(self._criu) as session:
            session.restore(request, _agree)

    def phases(self) -> tuple[PhaseTime, ...]:
        """CRIU tells of none."""
        return ()


def _agree(_stage: str, _pid: int | None) -> bool:
    return True


def make_trip(way: Way, program: Program) -> Trip:
    """Send a fresh program there and back, and leave nothing of it.

    Raises:
        IntegrityError: Its memory is not what it was.
        GpusnapError: A step failed.
    """
    before = program.start()
    saving = _measured(lambda: way.checkpoint(program))
    program.await_gone()  # init may take its time to reap it, whoever killed it
    stored = sum(file.stat().st_size for file in way.folder.rglob("*") if file.is_file())
    restoring = _measured(way.restore)
    restored_cpu_us = program.cpu_us()
    after = program.ask()
    if after != before:
        msg = f"After a restore by {way.name} the program's memory is not what it was"
        raise IntegrityError(msg, cure="Do not rely on snapshots made on this machine")
    program.end()
    shutil.rmtree(way.folder)
    return Trip(
        checkpoint_us=saving.wall_us,
        restore_us=restoring.wall_us,
        checkpoint_cpu_us=saving.cpu_us,
        restore_cpu_us=restoring.cpu_us + restored_cpu_us,
        stored=stored,
        phases=way.phases(),
    )


class _Took(msgspec.Struct, frozen=True):
    wall_us: int
    cpu_us: int


def _measured(step: Callable[[], None]) -> _Took:
    begin, cpu = time.monotonic_ns(), _cpu_us()
    step()
    return _Took((time.monotonic_ns() - begin) // 1000, _cpu_us() - cpu)


def _cpu_us() -> int:
    """Processor time of this process and of those that it started and that ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(sum(each.ru_utime + each.ru_stime for each in used) * 1e6)
