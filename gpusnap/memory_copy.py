"""What of a target goes past CRIU on its way into packs: copied, later compressed and written."""

from collections.abc import Sequence

from gpusnap.bulk_images import find_bulk_images, remove
from gpusnap.criu import seal
from gpusnap.datapath import ImageFile, Pack, Parent, Saver, Span, try_disk
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
        self._outside: PidMap = SAME
        self._bulk: tuple[ImageFile, ...] = ()
        self._saver: Saver | None = None
        # Tried now, while the target runs.
        measured = prepared.guarded or prepared.packed
        self._disk = try_disk(draft.work, prepared.estimate_bytes()) if measured else None

    def take(self, hidden: Sequence[Span], target: Target, outside: PidMap) -> None:
        """Take all that is needed of a target that stands still; it need not wait for the disk.

        Args:
            hidden: What CRIU did not save.
            target: The tree as it is now.
            outside: From the PIDs of the tree's namespace to those here.

        Raises:
            RegionsMovedError: The hidden memory is not what it was, or all of it is gone.
            GpusnapError: It cannot be copied.
        """
        self._outside = outside
        if self._prepared.packed:
            self._bulk = find_bulk_images(self._prepared.backend, self._draft.images)
        spans = settle(hidden, target)
        if spans:
            options = self._prepared.options
            box = options.mailbox
            owner = outside.translate(box.pid) if box else target.root.pid
            self._save(Phase.COPY, put_first(spans, owner, options.first))
        elif hidden:
            # The images name the guard, which only a restore that fills memory brings along
            raise RegionsMovedError("All memory hidden from CRIU is gone", cure="Try again")

    def write(self) -> None:
        """Write what was taken, and the images with device memory, which are gone then.

        Raises:
            IntegrityError: What is needed of the parent is damaged.
            GpusnapError: The disk refused.
        """
        if self._bulk and self._saver is None:
            self._save(Phase.PACK)
        if self._saver is None:
            return
        # Where the target ends nothing else is left of what the parent is relied on for.
        check = not self._prepared.options.leave_running
        with self._phases.step(Phase.WRITE) as progress:
            self.memory = self._saver.finish(progress, check_parent=check)
        self.packs = self._saver.packs
        self._saver = None
        remove(self._bulk)

    def abort(self) -> None:
        """Write no more, and wait until nothing is being written."""
        if self._saver is not None:
            self._saver.abort()

    def _save(self, phase: Phase, spans: Sequence[Span] = ()) -> None:
        with storage("write to", self._draft.images):
            seal(self._draft.images)
        inside = self._outside.inverse.translate
        options = self._prepared.options
        runs_on = options.leave_running
        self._saver = Saver(
            self._draft.regions, options.saving, self._parent, inside, self._disk, runs_on=runs_on
        )
        total = sum(span.length for span in spans) + sum(sum(file.parts) for file in self._bulk)
        with self._phases.step(phase, total) as progress:
            self._saver.copy(spans, progress, self._bulk)
