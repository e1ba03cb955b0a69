"""A bench from its checks to its report."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gpusnap.bench.machine import read_machine, require_room
from gpusnap.bench.rates import measure_native
from gpusnap.bench.report import Native, Ratios, Report, Round
from gpusnap.bench.target import Program
from gpusnap.bench.trips import ByCriu, ByGpusnap, make_trip
from gpusnap.criu import find_criu
from gpusnap.datapath import Compression
from gpusnap.errors import refuse
from gpusnap.findings import check_privileges
from gpusnap.plan import choose_saving
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.repository.storage import storage
from gpusnap.repository.tree import processors

DEFAULT_SIZE = 1 << 30
DEFAULT_ROUNDS = 3

Tell = Callable[[str], None]


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Attributes:
        size: Bytes of memory of the program that is saved.
        rounds: Checkpoints and restores by each, the one that is not counted aside.
        folder: Where a folder for the snapshots is made; None for the one for temporary files.
        compress: How gpusnap compresses.
        workers: Threads of gpusnap; None for one a CPU.
    """

    size: int = DEFAULT_SIZE
    rounds: int = DEFAULT_ROUNDS
    folder: Path | None = None
    compress: str = Compression.AUTO.value
    workers: int | None = None


def run_bench(options: BenchOptions, *, tell: Tell, plugins: Plugins | None = None) -> Report:
    """Measure; no process but the bench's own is touched, and nothing is left of it.

    Args:
        options: What is measured.
        tell: Called with what is being done, in words.
        plugins: The plugins to use; the installed ones by default.

    Raises:
        IntegrityError: A restored program's memory was not what it had been.
        PrivilegeError: Processes cannot be saved here.
        CriuError: There is no CRIU that works.
        GpusnapError: There is no room, or a step failed.
    """
    choose_saving(options.compress, workers=options.workers)
    parent = options.folder or Path(tempfile.gettempdir())
    with _folder(parent) as folder:
        require_room(options.size, folder)
        refuse(tuple(check_privileges()))
        find_criu()
        with _program(folder, options.size) as program:
            return _Bench(options, folder, program, tell, plugins or default_plugins()).run()


@contextlib.contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    with storage("make a folder in", parent):
        folder = Path(tempfile.mkdtemp(prefix="gpusnap-bench-", dir=parent)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _program(folder: Path, size: int) -> Iterator[Program]:
    program = Program(folder, size)
    try:
        yield program
    finally:
        program.end()


class _Bench:
    """The measurements in order."""

    def __init__(
        self, options: BenchOptions, folder: Path, program: Program, tell: Tell, plugins: Plugins
    ) -> None:
        self._options = options
        self._folder = folder
        self._program = program
        self._tell = tell
        self._plugins = plugins
        self._gpusnap = ByGpusnap(
            folder, plugins, compress=options.compress, workers=options.workers
        )
        self._criu = ByCriu(folder)

    def run(self) -> Report:
        rates = self._native()
        rounds = self._rounds()
        return Report(
            machine=read_machine(find_criu(), self._folder),
            size=self._options.size,
            compress=self._options.compress,
            workers=self._workers,
            native=rates,
            rounds=rounds,
            ratios=Ratios.of(rounds),
        )

    @property
    def _workers(self) -> int:
        return self._options.workers or processors()

    def _native(self) -> Native:
        self._tell("Measuring copies and checksums")
        answer = self._program.start()
        rates = measure_native(self._program.pid, answer.address, self._options.size, self._workers)
        self._program.end()
        return rates

    def _rounds(self) -> tuple[Round, ...]:
        self._plugins.register(self._gpusnap, "bench")
        try:
            self._tell("One round that is not counted")
            self._round(0)
            return tuple(map(self._round, range(1, self._options.rounds + 1)))
        finally:
            self._plugins.unregister(self._gpusnap)

    def _round(self, number: int) -> Round:
        """One trip each; who goes first changes from round to round."""
        if number:
            self._tell(f"Round {number} of {self._options.rounds}")
        ways = (self._gpusnap, self._criu)[:: -1 if number % 2 else 1]
        trips = {way.name: make_trip(way, self._program) for way in ways}
        return Round(gpusnap=trips[ByGpusnap.name], criu=trips[ByCriu.name])
