"""The progress display of a terminal: a plugin that listens to events like any other."""

import os
import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from gpusnap.cli._format import duration, size
from gpusnap.events import Event, Frozen, Phase, PhaseFinished, PhaseProgress, PhaseStarted, Thawed
from gpusnap.hookspecs import hookimpl
from gpusnap.phases import now_us

_WORDS = {
    Phase.PREFLIGHT: "check target",
    Phase.LOCK: "lock devices",
    Phase.CHECKPOINT: "device to host memory",
    Phase.SCRUB: "take devices from forked children",
    Phase.DUMP: "dump processes",
    Phase.COPY: "copy memory",
    Phase.PACK: "pack images with device memory",
    Phase.WRITE: "write memory",
    Phase.DIGEST: "digest files",
    Phase.PUBLISH: "publish snapshot",
    Phase.VERIFY: "verify files",
    Phase.COMPARE: "compare devices and host",
    Phase.UNPACK: "unpack images with device memory",
    Phase.CRIU_RESTORE: "restore processes",
    Phase.FILL: "fill memory",
    Phase.RESTORE: "host memory to device",
    Phase.UNLOCK: "unlock devices",
    Phase.ROLLBACK: "roll back",
}


def on_terminal() -> bool:
    """Whether there is someone to show progress to."""
    # Rich would take FORCE_COLOR for a terminal, which a log file with colours is not.
    dumb = os.environ.get("TERM", "") in {"", "dumb", "unknown"}
    return sys.stderr is not None and sys.stderr.isatty() and not dumb


def _seconds(task: Task) -> float:
    """How long a step has taken, or took."""
    return (task.finished_time if task.finished else task.elapsed) or 0.0


class _Amount(ProgressColumn):
    """Bytes and bytes a second, where a step moves bytes."""

    def render(self, task: Task) -> Text:
        if not task.fields["moves_bytes"]:
            return Text()
        speed = task.completed / took if (took := _seconds(task)) else 0.0
        return Text(f"{size(int(task.completed))} at {speed / 1e9:.3g} GB/s")


class _Elapsed(ProgressColumn):
    """How long a step has taken."""

    def render(self, task: Task) -> Text:
        return Text(duration(round(_seconds(task) * 1e6)))


class _FrozenTime(ProgressColumn):
    """How long the target has not run, beside the step under way."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True))
        self.since: int | None = None

    def render(self, task: Task) -> Text:
        if self.since is None or task.finished:
            return Text()
        return Text(f"frozen {duration(now_us() - self.since)}", style="yellow")


class Display:
    """Shows the steps of an operation with bytes, speed and frozen time on standard error."""

    def __init__(self) -> None:
        self._frozen = _FrozenTime()
        self._tasks: dict[Phase, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            _Elapsed(Column(no_wrap=True)),
            _Amount(Column(no_wrap=True)),
            self._frozen,
            console=Console(stderr=True),
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        """Show what goes on."""
        match event:
            case PhaseStarted():
                self._tasks[event.phase] = self._begin(event)
            case PhaseProgress() if event.phase in self._tasks:
                self._move(event)
            case PhaseFinished() if event.phase in self._tasks:
                self._finish(self._tasks[event.phase])
            case Frozen():
                self._frozen.since = now_us()
            case Thawed():
                self._frozen.since = None

    def _begin(self, event: PhaseStarted) -> TaskID:
        words = _WORDS.get(event.phase, event.phase.value)
        return self._progress.add_task(words, total=event.total or None, moves_bytes=False)

    def _move(self, event: PhaseProgress) -> None:
        self._progress.update(
            self._tasks[event.phase],
            completed=event.done,
            total=event.total or None,
            moves_bytes=True,
        )

    def _finish(self, identifier: TaskID) -> None:
        task = self._progress.tasks[identifier]
        total = task.total or max(task.completed, 1)
        self._progress.update(identifier, total=total, completed=total)
