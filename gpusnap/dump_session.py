"""CRIU's session of a checkpoint: which memory is hidden from it, what its images must hold."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from gpusnap.criu import GUARD_NAME, Range, Session, find_criu, guarded, inventory_plugins
from gpusnap.datapath import Span
from gpusnap.errors import CriuError, NotFoundError, TargetError, refuse
from gpusnap.events import CriuNotified, Event, Phase
from gpusnap.journal import Journal
from gpusnap.nested import entrance, outside_map
from gpusnap.phases import Phases
from gpusnap.plan import Prepared
from gpusnap.regions import (
    MINIMUM_HOST,
    STEADY_HOST,
    RegionsMovedError,
    device_spans,
    host_spans,
)
from gpusnap.repository import Draft
from gpusnap.repository.storage import storage
from gpusnap.target import find_target, is_zombie, read_status
from gpusnap.thp import huge_pages
from gpusnap.types import CriuOptions, DeviceImage


class Moments(NamedTuple):
    """What is called at moments of a dump.

    What it raises ends the dump, and CRIU lets the processes go on, even where they were to end.

    Attributes:
        begun: With what the devices left, once, before all else; the processes may still run.
        standing: With the hidden memory, once all processes stand still: CRIU is about to save
            them, and neither it nor they touch that memory.
        saved: Once the images are complete.
        over: Before the dump is made once more from the beginning; the processes run then.
    """

    begun: Callable[[Sequence[Span]], None]
    standing: Callable[[Sequence[Span]], None]
    saved: Callable[[], None]
    over: Callable[[], None]


def _nothing() -> None:
    pass


_LOOKS = 5
"""How often in a row, about a second apart, a process is seen dead until CRIU is given up: one that
does not wait for it fails sooner."""


class DumpSession:
    """Has CRIU dump a target, with the large memory hidden from it if that can be done.

    Attributes:
        criu: The CRIU that does it.
    """

    def __init__(
        self, prepared: Prepared, draft: Draft, phases: Phases, emit: Callable[[Event], None]
    ) -> None:
        self.criu = prepared.criu or find_criu()
        self._prepared = prepared
        self._root = prepared.target.root.pid
        self._criu_options = prepared.criu_options()
        self._draft = draft
        self._phases = phases
        self._emit = emit
        self._standing = self._saved = False
        self._looks = 0
        self._dumping = contextlib.ExitStack()

    def run(self, image: DeviceImage | None, journal: Journal, moments: Moments) -> None:
        """Dump the target; it runs on, or is gone, as its options say.

        Args:
            image: What the devices left in host memory.
            journal: Gets CRIU's process.
            moments: What is to be done meanwhile.

        Raises:
            GpusnapError: CRIU failed or left out a stage, its images lack something, or
                one of ``moments`` raised.
        """
        if not self._prepared.guarded:
            self._dump(tuple, journal, moments)
            return
        device = device_spans(image)
        begin: Callable[[], None] = partial(moments.begun, device)
        # A program may map and unmap a lot; the device's memory it never touches.
        for minimum in (MINIMUM_HOST, STEADY_HOST):
            try:
                self._dump(partial(self._with_host, device, minimum), journal, moments, begin)
            except RegionsMovedError:
                moments.over()
                self._draft.start_over()
                begin = _nothing
            else:
                return
        self._dump(lambda: device, journal, moments)

    def _with_host(self, device: Sequence[Span], minimum: int) -> Sequence[Span]:
        # The tree is read again: it may have forked since
        return (*device, *host_spans(find_target(self._root), device, minimum))

    def _dump(
        self,
        choose: Callable[[], Sequence[Span]],
        journal: Journal,
        moments: Moments,
        begin: Callable[[], None] = _nothing,
    ) -> None:
        with self._dumping:
            self._dumping.enter_context(self._phases.step(Phase.DUMP))
            begin()
            hidden, options = self._hide(choose())
            request = self._prepared.request(self._draft.images, self._draft.work, options)
            with (
                entrance(self._root) as way_in,
                Session(self.criu, journal.criu_started, way_in) as session,
            ):
                if self._prepared.driven is None:
                    self._phases.freeze(self._prepared.target.pids)
                with self._huge_pages():
                    notified = partial(self._notified, hidden=hidden, moments=moments)
                    session.dump(request, notified, self._watch)
        if not self._saved:
            msg = "CRIU said that it is done, but not that the processes stand still"
            raise CriuError(msg, cure="Use another CRIU; see gpusnap setup-criu")
        journal.update(criu=None)

    def _hide(self, spans: Sequence[Span]) -> tuple[Sequence[Span], CriuOptions]:
        """What is hidden of memory that is to be, and CRIU's options with which it is."""
        inside = outside_map(self._root).inverse
        # A process that has ended since has no PID there any more, and no memory
        spans = [span for span in spans if inside.get(span.pid)]
        if not spans:
            return (), self._criu_options
        ranges = [Range(inside.translate(span.pid), span.start, span.length) for span in spans]
        with storage("write to", self._draft.work):
            return spans, guarded(self._criu_options, self._draft.work, ranges)

    def _huge_pages(self) -> contextlib.AbstractContextManager[None]:
        """On request, while CRIU's plugin has the driver fill host memory."""
        prepared = self._prepared
        by_plugin = prepared.backend is not None and prepared.driven is None
        return huge_pages(self._emit, wanted=prepared.options.thp and by_plugin)

    def _notified(
        self, script: str, _pid: int | None, *, hidden: Sequence[Span], moments: Moments
    ) -> bool:
        self._emit(CriuNotified(script=script))
        # All stand still when CRIU asks for files; one that does not ask has them so in the end
        if script in {"query-ext-files", "post-dump"} and not self._standing:
            moments.standing(hidden)
            self._standing = True
        if script == "post-dump":
            self._dumping.close()
            self._check_images(guarded=bool(hidden))
            moments.saved()
            self._saved = True
        return True

    def _watch(self) -> None:
        """CRIU waits for ever for a process with threads that is killed while it traces it.

        The kernel does not tell it of the first thread's end before it has reaped the others.
        """
        if self._saved and not self._prepared.options.leave_running:
            return  # CRIU ends them all
        dead = [pid for pid in self._prepared.target.pids if _is_held_dead(pid)]
        self._looks = self._looks + 1 if dead else 0
        if self._looks >= _LOOKS:
            msg = f"Process {dead[0]} was killed while it was being saved"
            raise TargetError(msg, cure="Find out what killed it")

    def _check_images(self, *, guarded: bool) -> None:
        present = inventory_plugins(self._draft.images)
        wanted = self._criu_options.inventory_plugin
        if wanted is not None and wanted not in present:
            msg = f"CRIU's plugin {wanted} took no part in the dump, which lacks the device memory"
            raise CriuError(msg, cure="See CRIU's log")
        if guarded and GUARD_NAME not in present:
            raise CriuError("The guard plugin took no part in the dump", cure="Use --no-regions")
        for pattern in self._criu_options.expected_images:
            if not any(self._draft.images.glob(pattern)):
                msg = f"The dump has no image {pattern}"
                raise CriuError(msg, cure="See CRIU's log")
        backend = self._prepared.backend
        if backend is not None:
            refuse(backend.verify_images(str(self._draft.images)), CriuError)


def _is_held_dead(pid: int) -> bool:
    """Whether a process has ended and its tracer, which is CRIU, keeps that from its parent."""
    try:
        return is_zombie(pid) and read_status(pid)["TracerPid"] != "0"
    except NotFoundError:
        return False
