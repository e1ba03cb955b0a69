"""A snapshot's two kinds of data as a restore reads them: memory past CRIU, images for CRIU."""

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpusnap.criu import AbstractName, advise_huge_pages, image_pids, rename_sockets, unsealed
from gpusnap.datapath import Filler, Kind, Saved, Span
from gpusnap.errors import IntegrityError
from gpusnap.repository import Snapshot
from gpusnap.repository.storage import storage
from gpusnap.thp import SWITCH


def open_regions(
    snapshot: Snapshot, workers: int | None = None, saved: Saved | None = None
) -> Filler | None:
    """What fills the memory that went past CRIU.

    Args:
        snapshot: What is restored.
        workers: Threads; None for one a CPU.
        saved: What its index tells, where that was read already.

    Raises:
        IntegrityError: The regions are damaged, or of processes that are not the snapshot's:
            those must never be written into.
    """
    if snapshot.manifest.memory is None:
        return None
    filler = Filler(snapshot.regions, workers=workers, saved=saved)
    # CRIU makes those of its images; the manifest's were checked for PIDs that are taken
    known = {*snapshot.manifest.target.pids} & {*image_pids(snapshot.images)}
    strangers = {span.pid for span in filler.spans} - known
    if strangers:
        msg = f"The regions of {snapshot.name} hold memory of process {min(strangers)}, a stranger"
        raise IntegrityError(msg, cure="Restore another snapshot")
    return filler


@contextlib.contextmanager
def images_for_criu(
    snapshot: Snapshot,
    filler: Filler | None,
    work: Path,
    names: Mapping[AbstractName, AbstractName],
) -> Iterator[Path]:
    """The folder that CRIU is to read, inside the block.

    Args:
        snapshot: Whose images are never changed.
        filler: What fills the memory that they lack; None where they lack none.
        work: Existing folder that links to them may lie in.
        names: What abstract sockets are to be called instead.

    Raises:
        IntegrityError: The images are damaged.
        GpusnapError: The links cannot be made.
    """
    if filler is None and not names:
        yield snapshot.images
        return
    with storage("write to", work):
        images = unsealed(snapshot.images, work)
    try:
        with storage("write to", images):
            if names:
                rename_sockets(images, names)
            if filler is not None:
                _advise_huge_pages(images, filler.spans)
        yield images
    finally:
        # The logs beside it may be kept; what was unpacked is as large as the devices' memory.
        shutil.rmtree(images, ignore_errors=True)


def _advise_huge_pages(images: Path, spans: Iterable[Span]) -> None:
    """Have the memory that a driver is to move back to its devices filled in huge pages.

    It is gone once the driver has it. Memory of the program keeps the advice that it had.
    """
    if not SWITCH.path.exists():  # a kernel without them refuses the advice, and CRIU then ends
        return
    ranges = defaultdict[int, list[range]](list)
    for span in spans:
        if span.kind is Kind.DEVICE:
            ranges[span.pid].append(range(span.start, span.start + span.length))
    for pid, found in ranges.items():
        advise_huge_pages(images, pid, found)
