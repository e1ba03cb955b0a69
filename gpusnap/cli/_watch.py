"""Follows one operation: counts its warnings, shows or prints its progress."""

import contextlib
import threading
from collections.abc import Iterator

import click
import msgspec

from gpusnap.cli._interrupts import Interrupts
from gpusnap.cli._messages import (
    FindingLine,
    FrozenLine,
    Line,
    PhaseLine,
    ProgressLine,
    SummaryLine,
    ThawedLine,
)
from gpusnap.cli._output import Output, ReaderGoneError, UnwritableError
from gpusnap.cli._progress import Display, on_terminal
from gpusnap.errors import EXIT_OK, EXIT_WARNINGS
from gpusnap.events import (
    Event,
    Found,
    Frozen,
    Phase,
    PhaseFinished,
    PhaseProgress,
    PhaseStarted,
    Thawed,
)
from gpusnap.hookspecs import hookimpl
from gpusnap.phases import now_us
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.repository import PhaseTime
from gpusnap.types import Finding, Severity

_PROGRESS_EVERY_US = 250_000


class Record:
    """Keeps what an operation's events told: warnings, frozen time, the steps' times."""

    def __init__(self) -> None:
        self.warnings: list[Finding] = []
        self.frozen_us: int | None = None
        self.phases: list[PhaseTime] = []

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        """Keep it."""
        match event:
            case Found(finding=finding) if finding.severity is Severity.WARNING:
                self.warnings.append(finding)
            case Thawed(microseconds=microseconds):
                self.frozen_us = microseconds
            case PhaseFinished(phase=phase, microseconds=microseconds):
                self.phases.append(PhaseTime(phase=phase, microseconds=microseconds))


class JsonLines:
    """Prints events as JSON lines, progress a few times a second."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._next: dict[Phase, int] = {}

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        """Print it."""
        line = self._line(event)
        with self._lock:
            if line is None:
                return
            # A line that nobody gets must not end the operation; the summary will tell.
            with contextlib.suppress(ReaderGoneError, UnwritableError):
                self._output.line(line)

    def _line(self, event: Event) -> Line | None:
        line: Line | None = None
        match event:
            case PhaseStarted(phase=phase):
                line = PhaseLine(phase=phase, state="started")
            case PhaseFinished(phase=phase, microseconds=microseconds):
                line = PhaseLine(phase=phase, state="finished", microseconds=microseconds)
            case PhaseProgress():
                line = self._progress(event)
            case Frozen(pids=pids):
                line = FrozenLine(pids=pids)
            case Thawed(pids=pids, microseconds=microseconds):
                line = ThawedLine(pids=pids, frozen_us=microseconds)
            case Found(finding=finding):
                line = FindingLine(finding=finding)
        return line

    def _progress(self, event: PhaseProgress) -> ProgressLine | None:
        now = now_us()
        complete = 0 < event.total <= event.done
        if now < self._next.get(event.phase, 0) and not complete:
            return None
        self._next[event.phase] = now + _PROGRESS_EVERY_US
        return ProgressLine(phase=event.phase, bytes_done=event.done, bytes_total=event.total)


class Watch:
    """One operation as the command line sees it."""

    def __init__(self, plugins: Plugins, output: Output) -> None:
        self.plugins = plugins
        self.record = Record()
        self._output = output
        self._begin = now_us()

    @property
    def took_us(self) -> int:
        """Microseconds since the operation began."""
        return now_us() - self._begin

    @property
    def exit_code(self) -> int:
        """Success, or success with warnings."""
        return EXIT_WARNINGS if self.record.warnings else EXIT_OK

    def summary(self, verb: str, result: msgspec.Struct) -> None:
        """Print the last line of a JSON answer."""
        line = SummaryLine(
            verb=verb,
            microseconds=self.took_us,
            frozen_us=self.record.frozen_us,
            warnings=tuple(self.record.warnings),
            result=result,
        )
        self._output.line(line)


@contextlib.contextmanager
def _registered(plugins: Plugins, listeners: dict[str, object]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, listener in listeners.items():
            plugins.register(listener, f"cli-{name}")
            stack.callback(plugins.unregister, listener)
        yield


@contextlib.contextmanager
def watched(output: Output, *, last: bool = True) -> Iterator[Watch]:
    """Follow the operation inside the block; what checks found is told when it has ended.

    Args:
        output: Where its progress is printed.
        last: Whether the verb has no further operation to run.
    """
    plugins = default_plugins()
    watch = Watch(plugins, output)
    listeners: dict[str, object] = {"record": watch.record}
    interrupts = click.get_current_context().find_object(Interrupts)
    if interrupts is not None:
        listeners["interrupts"] = interrupts
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: output.remarks(watch.record.warnings))
        if output.json:
            listeners["progress"] = JsonLines(output)
        elif on_terminal():
            listeners["progress"] = stack.enter_context(Display())
        stack.enter_context(_registered(plugins, listeners))
        yield watch
        if interrupts is not None:
            interrupts.operation_ended(last=last)
