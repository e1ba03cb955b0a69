"""``gpusnap demo``: checkpoint, kill and restore of a real program, its result compared."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from gpusnap.checkpoint import run_checkpoint
from gpusnap.cli import _parameters
from gpusnap.cli._demo_program import BACKENDS, Kind, Program, choose_kind, prepare
from gpusnap.cli._failures import refused_path
from gpusnap.cli._format import count, duration, plain, size
from gpusnap.cli._messages import DemoVerdict, StepLine, snapshot_row
from gpusnap.cli._options import json_option
from gpusnap.cli._output import Output
from gpusnap.cli._watch import Watch, watched
from gpusnap.criu import find_criu
from gpusnap.errors import EXIT_OK, GpusnapError, TargetError, UsageError, refuse
from gpusnap.findings import check_privileges
from gpusnap.phases import now_us
from gpusnap.plan import CheckpointOptions
from gpusnap.plugins import default_plugins
from gpusnap.repository import Snapshot
from gpusnap.restore import run_restore

_STEP_US = 30_000
"""How slow the program is made, lest it end before it is saved: finding a GPU takes seconds."""


@click.command()
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    envvar="GPUSNAP_BACKEND",
    show_envvar=True,
    help="Device to use; amd has not yet run on AMD hardware.  [default: a real one if there is "
    "one, else the simulated one]",
)
@click.option(
    "--steps",
    metavar="N",
    type=_parameters.WholeNumber(min=2, max=1_000_000),
    default=300,
    envvar="GPUSNAP_STEPS",
    show_envvar=True,
    show_default=True,
    help="Steps the program computes.",
)
@click.option(
    "--keep",
    metavar="FOLDER",
    callback=_parameters.folder,
    envvar="GPUSNAP_KEEP",
    show_envvar=True,
    help="Keep snapshot and logs in this folder, which must be new or empty.",
)
@json_option
def demo(backend: str | None, steps: int, keep: Path | None, output: Output) -> int:
    """Save a program, kill it, bring it back, compare its result.

    The program computes on a real GPU, or on a simulated device where there is none. Its log
    is compared, digit for digit, with that of a run that nothing interrupted.
    """
    refuse(tuple(check_privileges()))
    find_criu()
    kind = choose_kind(default_plugins(), backend)
    with _folder(keep) as folder, _environment(kind, folder):
        verdict = _Demonstration(kind, folder, steps, output).run()
    if keep is not None:
        output.note(f"Snapshot and logs are in {keep}")
    return EXIT_OK if verdict.identical else GpusnapError.exit_code


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A folder for everything; kept if asked for, and where an error is to be looked into."""
    folder = Path(tempfile.mkdtemp(prefix="gpusnap-demo-")) if keep is None else _new(keep)
    try:
        yield folder
    except GpusnapError as error:
        error.details += (f"The demonstration's files are kept in {folder}",)
        raise
    except BaseException:
        _remove(folder, keep)
        raise
    _remove(folder, keep)


def _remove(folder: Path, keep: Path | None) -> None:
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)


def _new(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"The folder {folder} is not empty", cure="Name a new one")
    except OSError as error:
        text = f"The folder {folder} cannot be used"
        raise refused_path(text, error, "Name a folder that is new or empty") from None
    return folder.absolute()


@contextlib.contextmanager
def _environment(kind: Kind, folder: Path) -> Iterator[None]:
    """Set the variables that keep the demonstration apart from the machine's own state."""
    before = dict(os.environ)
    os.environ.update(prepare(kind, folder), GPUSNAP_STATE_DIR=str(folder / "state"))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _Demonstration:
    """The steps in order, each told in words with its time."""

    def __init__(self, kind: Kind, folder: Path, steps: int, output: Output) -> None:
        self._kind = kind
        self._folder = folder
        self._steps = steps
        self._output = output
        self._begin = now_us()

    def run(self) -> DemoVerdict:
        """Show it all."""
        expected = self._uninterrupted()
        program = Program(self._kind, "interrupted", self._folder, self._steps, _STEP_US)
        try:
            interrupted_at = self._compute(program)
            snapshot = self._checkpoint(program)
            watch = self._restore(program, snapshot)
            found = program.await_end()
        finally:
            program.end()
        self._tell(f"It came to its end by itself, after step {self._steps}")
        difference = _first_difference(expected, found)
        verdict = DemoVerdict(
            identical=difference is None,
            backend=self._kind.backend,
            steps=self._steps,
            interrupted_at=interrupted_at,
            snapshot=snapshot_row(snapshot),
            first_difference=difference,
        )
        self._conclude(verdict, watch)
        return verdict

    def _tell(self, text: str) -> None:
        """Print a step with the time since the one before."""
        took, self._begin = now_us() - self._begin, now_us()
        if self._output.json:
            self._output.line(StepLine(text=text, microseconds=took))
        else:
            self._output.say(f"[{duration(took):>8}] {text}")

    def _uninterrupted(self) -> bytes:
        program = Program(self._kind, "reference", self._folder, self._steps, step_us=0)
        try:
            log = program.await_end()
        finally:
            program.end()
        memory = size(self._kind.memory)
        self._tell(
            f"A program computed {self._steps} steps on {memory} of device memory "
            f"(backend {self._kind.backend}); nothing interrupted it"
        )
        return log

    def _compute(self, program: Program) -> int:
        step = program.await_step(self._steps // 3)
        self._tell(f"The same again: process {program.process.pid} has come to step {step}")
        return step

    def _checkpoint(self, program: Program) -> Snapshot:
        pid = program.process.pid
        with watched(self._output, last=False) as watch:
            snapshot = run_checkpoint(
                pid,
                "demo",
                repository=self._folder / "repository",
                options=CheckpointOptions(leave_running=False, backend=self._kind.backend),
                plugins=watch.plugins,
            )
        if not snapshot.manifest.claimed:
            raise TargetError(f"Process {pid} held no device state: nothing was shown")
        frozen_us = watch.record.frozen_us or snapshot.manifest.frozen_us
        self._tell(
            f"gpusnap checkpoint --kill {pid}: {count(len(snapshot.manifest.files), 'file')}, "
            f"{size(snapshot.size)}, frozen for {duration(frozen_us)}"
        )
        self._see_it_gone(program, watch)
        return snapshot

    def _see_it_gone(self, program: Program, watch: Watch) -> None:
        pid = program.process.pid
        backend = watch.plugins.backend(self._kind.backend)
        left = sum(use.memory or 0 for use in backend.processes() if use.pid == pid)
        if program.alive or left:
            raise TargetError(f"Process {pid} should be gone, and is not")
        step = program.steps_done()
        self._tell(f"Process {pid} is gone, from the device too, after step {step}")

    def _restore(self, program: Program, snapshot: Snapshot) -> Watch:
        with watched(self._output, last=False) as watch:
            restored = run_restore(snapshot.path, plugins=watch.plugins)
        program.adopt()
        self._tell(f"gpusnap restore: process {restored.root_pid} computes again")
        return watch

    def _conclude(self, verdict: DemoVerdict, watch: Watch) -> None:
        if self._output.json:
            watch.summary("demo", verdict)
        elif verdict.identical:
            lines = count(self._steps + 1, "line")
            self._output.say(f"IDENTICAL: {lines} of both logs agree, digit for digit")
        else:
            self._output.say(f"DIFFERENT: {verdict.first_difference}")


def _first_difference(expected: bytes, found: bytes) -> str | None:
    if expected == found:
        return None
    lines, others = expected.splitlines(), found.splitlines()
    for number, (line, other) in enumerate(zip(lines, others, strict=False), start=1):
        if line != other:
            ours, theirs = (plain(each.decode(errors="replace")) for each in (line, other))
            return f"line {number} is '{theirs}' instead of '{ours}'"
    return f"the restored run logged {len(others)} lines instead of {len(lines)}"
