"""From the memory of processes, and from image files, into packs."""

import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from gpusnap.datapath import records
from gpusnap.datapath.backlog import Backlog
from gpusnap.datapath.buffers import Buffers, default_budget
from gpusnap.datapath.codecs import Compression, Encoder
from gpusnap.datapath.crew import Crew
from gpusnap.datapath.disk import Disk, try_disk
from gpusnap.datapath.files import create, make_folder, storage, sync_folder, write_all
from gpusnap.datapath.identities import Identities, Parent, Stored
from gpusnap.datapath.images import ImageFile, MixedSource, image_spans
from gpusnap.datapath.joining import join
from gpusnap.datapath.pace import Pace
from gpusnap.datapath.pack import PackWriter, Use, Ways
from gpusnap.datapath.records import CHUNK, Index, Pack, Place
from gpusnap.datapath.reserve import Reserve
from gpusnap.datapath.source import Data, Windows
from gpusnap.datapath.spans import Image, Span, span_fault
from gpusnap.datapath.store import Store
from gpusnap.datapath.tally import summarize
from gpusnap.datapath.worker import Worker
from gpusnap.errors import GpusnapError, UsageError
from gpusnap.hookspecs import Progress
from gpusnap.types import SavedMemory

_RAW_IN_MEMORY = {Compression.AUTO, Compression.NONE}
_SPARED = 4
"""One in so many threads waits while the caller, and whoever works for it, needs a processor.

Where every processor copies, CRIU and the threads that it stops wait in line: its dump took 0.33 s
instead of 0.23, and nothing was won by that (16 processors).
"""

_SCATTERED = "Have CRIU save it: give --no-regions, and leave --incremental out"


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """How memory is saved.

    Attributes:
        compression: Which codec.
        workers: Threads; None for one a CPU.
        budget: Bytes of buffers; None for a quarter of the memory that is available then. Each
            worker needs some megabytes more, for the chunk at hand.
        incremental: Whether chunks get identities, so that what is there twice, or in a parent,
            is stored once.
    """

    compression: Compression = Compression.AUTO
    workers: int | None = None
    budget: int | None = None
    incremental: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"{self.workers} workers cannot save anything")
        if self.budget is not None and self.budget < 1:
            raise UsageError(f"{self.budget} bytes cannot hold anything")

    @property
    def threads(self) -> int:
        """How many threads work."""
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def whole(self) -> bool:
        """Whether packs become about as long as the memory is: in memory nothing else pays."""
        return self.compression in _RAW_IN_MEMORY and not self.incremental


class Saver:
    """Saves memory into a folder: :meth:`copy` while the target stands still, then :meth:`finish`.

    A caller that has something else to do meanwhile calls :meth:`start` and :meth:`wait_copied`
    instead of :meth:`copy`.

    Whatever fails, the work is called off and the folder worth nothing. The error does not wait
    for the threads, since the target may: :meth:`abort` does. An error of one method is raised by
    the next one again.

    Attributes:
        packs: All packs of the folder by their numbers, once :meth:`finish` has returned.
        total: Bytes to copy, holes and zeros included.
    """

    def __init__(  # noqa: PLR0913 - most by name
        self,
        folder: Path,
        saving: Saving,
        parent: Parent | None = None,
        pids: Callable[[int], int] | None = None,
        disk: Disk | None = None,
        *,
        runs_on: bool = True,
        reserve: Reserve | None = None,
    ) -> None:
        """Make the folder.

        Args:
            folder: Where packs and index go; it must not exist.
            saving: How.
            parent: Memory saved earlier, on the same file system, for an incremental saving.
            pids: Tells by what PID a process goes in the folder; None for the one it has here.
            disk: What :func:`try_disk` says of the folder's disk; None to try it here.
            runs_on: Whether the target runs on once its memory is copied. Else nothing is gained
                by a copy that is ready early, and it is written as it is made.
            reserve: Room for packs that was found before.

        Raises:
            GpusnapError: It cannot be made.
        """
        self._folder = folder
        self._pids = pids
        with storage("make", folder):
            make_folder(folder)
        self.packs: tuple[Pack, ...] = ()
        self.total = 0
        self._compression = saving.compression
        self._parent = parent if saving.incremental else None
        known = self._parent.known if self._parent else {}
        self._identities = Identities(known) if saving.incremental else None
        self._workers = saving.threads
        self._crew = Crew()
        buffers = Buffers(saving.budget or default_budget(), self._workers)
        self._window = buffers.size // CHUNK * CHUNK
        self._backlog = Backlog(self._crew, buffers)
        self._windows: Windows | None = None
        self._images: tuple[Image, ...] = ()
        self._numbers = itertools.count()
        self._own: dict[int, Pack] = {}
        self._kept: list[tuple[Data, Stored]] = []
        self._places: list[Place] = []
        self._uses: list[dict[int, Use]] = []
        self._read = self._zero = 0
        self._disk = try_disk(folder, 0) if disk is None else disk
        self._runs_on = runs_on
        make = create if reserve is None else reserve.create
        self._ways = Ways(self._direct, self._at_once, make)
        self._may_seal = not runs_on
        self._all = False
        self._unsealed = 0
        self._pace = Pace(self._disk.cost, self._workers)

    def copy(
        self, spans: Sequence[Span], progress: Progress, files: Sequence[ImageFile] = ()
    ) -> None:
        """Copy memory out of processes that stand still, and what is in image files behind it.

        Once it returns, nothing more is needed of the processes and the files. What waits in
        buffers is being encoded and written while the caller goes on.

        Args:
            spans: Private anonymous memory, made of whole pages, without overlap.
            progress: Called with bytes done, holes and zeros included, and bytes in all.
            files: Image files, each of another name.

        Raises:
            UsageError: The spans or files cannot be.
            TargetError: A process ended, or its memory cannot be read.
            GpusnapError: The disk refused.
        """
        self.start(spans, files)
        self.wait_copied(progress)

    def start(
        self, spans: Sequence[Span], files: Sequence[ImageFile] = (), *, more: bool = False
    ) -> None:
        """Begin what :meth:`copy` does; the processes stand still, and the files are complete.

        Args:
            spans: Private anonymous memory, made of whole pages, without overlap.
            files: Image files, each of another name.
            more: Whether :meth:`add` follows. Then only what is in the spans need stand still.

        Raises:
            UsageError: The spans or files cannot be.
            GpusnapError: There can be no more threads.
        """
        if self._windows is not None:
            raise RuntimeError("start() was called before")
        self._images = tuple(file.image for file in files)
        spans = (*spans, *image_spans(files))
        self._require_fit(spans)
        source, check = MixedSource(files), self._crew.check
        self._windows = windows = Windows(spans, source, self._window, check, more=more)
        self.total = sum(span.length for span in spans)
        count = self._workers if more else min(self._workers, windows.count)
        scouts, spared = int(count > 1), count // _SPARED
        self._backlog.begin(count + scouts)
        self._unsealed = count
        tasks = [
            *[self._look_ahead] * scouts,
            *[self._work] * (count - spared),
            *[self._work_later] * spared,
        ]
        self._crew.start(len(tasks), lambda number: tasks[number](windows))

    def add(self, spans: Sequence[Span]) -> None:
        """Give what is still to be copied, once; behind what was given to :meth:`start`.

        Raises:
            UsageError: The spans cannot be.
        """
        if self._windows is None:
            raise RuntimeError("start() comes first")
        self._require_fit((*self._windows.spans, *spans))
        self.total += sum(span.length for span in spans)
        self._windows.add(spans)

    def _require_fit(self, spans: Sequence[Span]) -> None:
        if fault := span_fault(spans, self._images):
            raise UsageError(f"Memory cannot be saved: {fault}")

    def use_all(self) -> None:
        """Let all threads copy: the caller has nothing else to do that takes a processor."""
        with self._crew.changed:
            self._all = True
            self._crew.changed.notify_all()

    def wait_copied(self, progress: Progress) -> None:
        """Wait until all is copied; arguments and errors are those of :meth:`copy`."""
        self.use_all()
        backlog = self._backlog
        self._crew.watch(progress, self.total, lambda: backlog.passed, lambda: backlog.all_copied)

    def finish(self, progress: Progress, *, check_parent: bool = False) -> SavedMemory:
        """Wait for what is still being written, make it durable, write the index.

        Args:
            progress: Called with bytes written and bytes in all, as they were in the process.
            check_parent: Read the packs that are taken over from the parent, as is due where
                nothing else will be left of the memory.

        Returns:
            What was saved, and what the codecs made of it.

        Raises:
            IntegrityError: What is needed of the parent is damaged.
            GpusnapError: The disk refused, or the memory is too scattered for an index.
        """
        if self._windows is None:
            raise RuntimeError("start() comes first")
        backlog, crew = self._backlog, self._crew
        with crew.changed:
            self._may_seal = True
            crew.changed.notify_all()
        crew.watch(progress, backlog.copied, lambda: backlog.written, lambda: self._unsealed == 0)
        own = [self._own[number] for number in sorted(self._own)]
        spans = self._named(self._windows)
        joined = join(
            folder=self._folder,
            spans=spans,
            packs=own,
            places=self._places,
            kept=self._kept,
            parent=self._parent,
            progress=lambda done, of: progress(backlog.written + done, backlog.copied + of),
            checkers=self._workers if check_parent else 0,
        )
        self._write_index(Index(spans, joined.packs, joined.places, self._images))
        # Meanwhile the packs were being made durable
        crew.watch(lambda _done, _of: None, 0, lambda: 0, lambda: crew.ended)
        crew.join()
        self.packs = joined.packs
        identities = self._identities is not None
        images = sum(image.length for image in self._images)
        return summarize(
            raw=self._read,
            zero=self._zero,
            uses=self._uses,
            kept=self._kept,
            joined=joined,
            identities=identities,
            images=images,
        )

    @property
    def failure(self) -> BaseException | None:
        """What failed first, if anything; the methods that wait raise it, too."""
        return self._crew.failure

    def call_off(self) -> None:
        """Have the threads stop, and do not wait for them."""
        self._crew.call_off()

    def abort(self) -> None:
        """Stop, and wait for the threads; may be called at any time, also more than once."""
        self._crew.stop()

    def _named(self, windows: Windows) -> tuple[Span, ...]:
        """The spans as the folder is to know them."""
        pids = self._pids
        if pids is None:
            return windows.spans
        renamed = msgspec.structs.replace
        return tuple(
            span if span.of_image else renamed(span, pid=pids(span.pid)) for span in windows.spans
        )

    def _write_index(self, index: Index) -> None:
        path = self._folder / records.INDEX
        data = records.encode_index(index)
        if len(data) > records.INDEX_LIMIT:
            raise GpusnapError(
                f"The memory lies in too many small pieces: their index would have {len(data)} "
                f"bytes, more than the {records.INDEX_LIMIT} that a snapshot may have",
                cure=_SCATTERED,
            )
        with storage("write", path):
            descriptor = create(path)
            try:
                write_all(descriptor, [data], 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_folder(self._folder)

    def _direct(self) -> bool:
        """Whether to write past the page cache: not while that lets a target run on sooner."""
        return self._disk.direct and (not self._runs_on or self._backlog.all_copied)

    def _at_once(self) -> bool:
        """Whether to have the disk work on what is written: a busy one holds others up."""
        return self._may_seal and not self._disk.in_memory

    def _await_finish(self) -> None:
        """Make nothing durable while a target that is to run on may still stand still.

        Its disk's file system would hold up whoever writes to it until all that was copied is on
        the disk, the journal among them that has to be written before the target runs.
        """
        with self._crew.changed:
            while not self._may_seal:
                self._crew.wait()

    def _look_ahead(self, windows: Windows) -> None:
        windows.look_ahead()
        self._backlog.finished_copying(0)

    def _work_later(self, windows: Windows) -> None:
        with self._crew.changed:
            while not self._all:
                self._crew.wait()
        self._work(windows)

    def _work(self, windows: Windows) -> None:
        with closing(PackWriter(self._folder, self._numbers, self._ways)) as writer:
            store = Store(writer, Encoder(self._compression), self._identities)
            worker = Worker(windows, self._backlog, store, self._pace, at_once=not self._runs_on)
            worker.run()
            self._await_finish()
            pack = writer.end(self._named(windows))
            places = writer.places() if self._identities is None else ()
            with self._crew.changed:
                self._read += worker.read
                self._zero += worker.zero
                self._kept += store.kept
                self._uses.append(writer.uses)
                self._places += places
                if pack is not None:
                    self._own[writer.number] = pack
                self._unsealed -= 1
                self._crew.over.notify_all()
            writer.make_durable()
