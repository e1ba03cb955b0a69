"""What of a target goes past CRIU on its way into packs: copied, later compressed and written."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from gpusnap.bulk_images import find_bulk_images, remove
from gpusnap.criu import seal
from gpusnap.datapath import Disk, ImageFile, Kind, Pack, Parent, Reserve, Saver, Span, try_disk
from gpusnap.errors import TargetError
from gpusnap.events import Phase
from gpusnap.phases import Phases
from gpusnap.pids import SAME, PidMap
from gpusnap.plan import Prepared
from gpusnap.regions import RegionsMovedError, put_first, settle
from gpusnap.repository import Draft
from gpusnap.repository.storage import storage
from gpusnap.types import SavedMemory, Target


class MemoryCopy:
    """Memory hidden from CRIU, and images in which a vendor's plugin put device memory.

    Attributes:
        memory: What was saved, once :meth:`write` has returned; None where there was nothing.
        packs: The packs that it is in.
    """

    def __init__(
        self, prepared: Prepared, draft: Draft, parent: Parent | None, phases: Phases
    ) -> None:
        self.memory: SavedMemory | None = None
        self.packs: tuple[Pack, ...] = ()
        self._prepared = prepared
        self._draft = draft
        self._parent = parent
        self._phases = phases
        self._inside: PidMap = SAME
        self._spans: Sequence[Span] = ()
        self._early: Sequence[Span] = ()
        self._complete = False
        self._bulk: tuple[ImageFile, ...] = ()
        self._saver: Saver | None = None
        self._disk: Disk | None = None
        self._reserve: Reserve | None = None
        if prepared.guarded or prepared.packed:
            size = prepared.estimate_bytes()
            # Tried now, while the target runs.
            self._disk = disk = try_disk(draft.work, size)
            options = prepared.options
            if disk.in_memory and options.saving.whole and not options.leave_running:
                threads, free = options.saving.threads, draft.free_bytes()
                self._reserve = Reserve(draft.work, threads, size, free)

    def reserving(self) -> AbstractContextManager[None]:
        """Find room for the memory while the block runs, if others would have to wait for it."""
        return nullcontext() if self._reserve is None else self._reserve.growing()

    def begin_devices(self, spans: Sequence[Span]) -> None:
        """Begin with memory that none of the target's threads touches, which may still run.

        What the program itself wants to have copied before all else goes first nevertheless.

        Args:
            spans: What the devices left.

        Raises:
            GpusnapError: It cannot be copied.
        """
        if spans and not self._prepared.packed and not self._prepared.options.first:
            self._early = tuple(spans)
            self._start(spans, more=True)

    def begin(self, hidden: Sequence[Span], target: Target, outside: PidMap) -> None:
        """Begin to copy out of a target that stands still, if that can be while CRIU saves it.

        Args:
            hidden: What CRIU does not save.
            target: The tree as it is now.
            outside: From the PIDs of the tree's namespace to those here.

        Raises:
            RegionsMovedError: The hidden memory is not what it was, or all of it is gone.
            GpusnapError: It cannot be copied.
        """
        self._inside = outside.inverse
        settled = settle(hidden, target)
        if hidden and not settled.spans:
            # The images name the guard, which only a restore that fills memory brings along
            raise RegionsMovedError("All memory hidden from CRIU is gone", cure="Try again")
        if self._early and not settled.holds_devices(sum(span.length for span in self._early)):
            raise RegionsMovedError("Memory that the devices left has changed", cure="Try again")
        options = self._prepared.options
        box = options.mailbox
        owner = outside.translate(box.pid) if box else target.root.pid
        self._spans = put_first(settled.spans, owner, options.first)
        if self._spans and not settled.runnable and not self._prepared.packed:
            self._copy_rest()

    def start_over(self) -> None:
        """Give up what was begun, before the dump is made once more."""
        self.abort()
        self._saver, self._spans, self._early, self._complete = None, (), (), False

    def take(self) -> None:
        """Take all that is still needed of the target; it need not wait for the disk.

        Raises:
            GpusnapError: It cannot be copied.
        """
        if self._prepared.packed:
            self._bulk = find_bulk_images(self._prepared.backend, self._draft.images)
        if self._spans and not self._complete:
            self._copy_rest()
        if self._spans or self._bulk:
            with storage("write to", self._draft.images):
                seal(self._draft.images)
        if self._saver is not None:
            ends = not self._prepared.options.leave_running
            self._await_copy(Phase.COPY, self._saver, sum_early=ends and not self._bulk)

    def write(self) -> None:
        """Write what was taken, and the images with device memory, which are gone then.

        Raises:
            IntegrityError: What is needed of the parent is damaged.
            GpusnapError: The disk refused.
        """
        if self._bulk and self._saver is None:
            self._await_copy(Phase.PACK, self._start(self._spans))
        if self._saver is None:
            return
        # Where the target ends nothing else is left of what the parent is relied on for.
        check = not self._prepared.options.leave_running
        with self._phases.step(Phase.WRITE) as progress:
            self.memory = self._saver.finish(progress, check_parent=check)
        self.packs = self._saver.packs
        self._saver = None
        self._drop_reserve()
        remove(self._bulk)

    def require_room(self) -> None:
        """Raise what the disk refused, of which CRIU may not even have had room to write.

        What became of the target CRIU knows better.
        """
        failure = None if self._saver is None else self._saver.failure
        if failure is not None and not isinstance(failure, TargetError):
            raise failure

    def call_off(self) -> None:
        """Have the copying end soon."""
        if self._saver is not None:
            self._saver.call_off()

    def abort(self) -> None:
        """Write no more, and wait until nothing is being written."""
        if self._saver is not None:
            self._saver.abort()
        self._drop_reserve()

    def _drop_reserve(self) -> None:
        if self._reserve is not None:
            self._reserve.drop()

    def _copy_rest(self) -> None:
        """Copy what is not being copied yet."""
        self._complete = True
        if self._saver is None:
            self._start(self._spans)
        else:
            self._saver.add([span for span in self._spans if span.kind is not Kind.DEVICE])

    def _start(self, spans: Sequence[Span], *, more: bool = False) -> Saver:
        options = self._prepared.options
        runs_on = options.leave_running
        self._saver = saver = Saver(
            self._draft.regions,
            options.saving,
            self._parent,
            self._pid_inside,
            self._disk,
            runs_on=runs_on,
            reserve=self._reserve,
        )
        saver.start(spans, self._bulk, more=more)
        return saver

    def _pid_inside(self, pid: int) -> int:
        """The PID of a process as its tree sees it, known once all processes stand still."""
        return self._inside.translate(pid)

    def _await_copy(self, phase: Phase, saver: Saver, *, sum_early: bool = False) -> None:
        with self._phases.step(phase, saver.total) as progress:
            saver.use_all()
            if sum_early:
                self._draft.sum_early()
            saver.wait_copied(progress)
