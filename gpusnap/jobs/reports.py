"""What a supervised job's user is told while it runs."""

from collections.abc import Callable
from enum import StrEnum

import msgspec

from gpusnap.errors import GpusnapError
from gpusnap.events import Event, Found, RunReported
from gpusnap.hookspecs import hookimpl
from gpusnap.types import Severity


class Happening(StrEnum):
    """Kinds of reports."""

    STARTED = "started"
    ADOPTED = "adopted"
    SAVED = "saved"
    NOT_SAVED = "not-saved"
    FAULT = "fault"
    CRASHED = "crashed"
    RESTORED = "restored"
    NOT_RESTORED = "not-restored"
    RISK = "risk"
    ENDED = "ended"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a run.

    Attributes:
        run: Its name.
        text: One sentence.
        warning: Whether it is trouble.
        cure: What the user can do, or None.
        details: Further lines.
        pid: The job's root, where it is about a job that runs.
        snapshot: Path of the snapshot it is about.
        exit_code: What the job ended with.
    """

    run: str
    happening: Happening
    text: str
    warning: bool = False
    cure: str | None = None
    details: tuple[str, ...] = ()
    pid: int | None = None
    snapshot: str | None = None
    exit_code: int | None = None


Tell = Callable[[Report], None]
"""Receives reports; called from one thread at a time."""


def announced(tell: Tell, emit: Callable[[Event], None]) -> Tell:
    """Have the plugins hear of reports too."""

    def told(report: Report) -> None:
        tell(report)
        emit(
            RunReported(
                run=report.run,
                happening=report.happening,
                text=report.text,
                warning=report.warning,
                pid=report.pid,
                snapshot=report.snapshot,
                exit_code=report.exit_code,
            )
        )

    return told


def trouble(run: str, happening: Happening, text: str, error: BaseException) -> Report:
    """A report of an error; one that nobody foresaw is told by its class and words."""
    if isinstance(error, GpusnapError):
        return Report(
            run=run,
            happening=happening,
            text=f"{text}: {error.text}",
            warning=True,
            cure=error.cure,
            details=error.details,
        )
    words = f"{text}: {type(error).__name__}: {error}"
    return Report(run=run, happening=happening, text=words, warning=True)


class Findings:
    """Tells what the checks of a run's operations find, each kind of warning once."""

    def __init__(self, run: str, tell: Tell) -> None:
        self._run = run
        self._tell = tell
        self._told: set[str] = set()

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        """Tell it."""
        if not isinstance(event, Found) or event.finding.severity is not Severity.WARNING:
            return
        finding = event.finding
        if finding.code in self._told:
            return
        self._told.add(finding.code)
        report = Report(
            run=self._run,
            happening=Happening.RISK,
            text=f"{finding.text} [{finding.code}]",
            warning=True,
            cure=finding.cure,
        )
        self._tell(report)
