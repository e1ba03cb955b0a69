"""Whether packs still hold what the index says: every byte of them, or a part."""

import os
import threading
from collections.abc import Collection

import msgspec

from gpusnap.datapath.files import open_regular, read_exactly, require_damage, size_of
from gpusnap.datapath.reading import use_chunks
from gpusnap.datapath.records import HEADER, MISMATCH, FormatError, check_footer, encode_header
from gpusnap.datapath.saved import Located, Saved
from gpusnap.datapath.subset import Subset
from gpusnap.hookspecs import Progress
from gpusnap.native import Extent, crc32

MOST = 100
"""So much damage is told one by one; the rest is counted."""


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong with a pack.

    Attributes:
        pack: Its number.
        words: What is wrong, to be read behind the pack's name.
        position: Where in the pack the damaged chunk is; None where it is none.
    """

    pack: int
    words: str
    position: int | None = None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of packs read and found.

    Attributes:
        bytes: How much was read.
        damages: By pack and position, at most :data:`MOST`.
        more: How much more there is.
    """

    bytes: int
    damages: tuple[Damage, ...]
    more: int


class _Findings:
    """What the threads find."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved
        self._lock = threading.Lock()
        self._damages: list[Damage] = []
        self.more = 0

    def add(self, damage: Damage) -> None:
        """Note damage, or only count it where there is much already."""
        with self._lock:
            if len(self._damages) < MOST:
                self._damages.append(damage)
            else:
                self.more += 1

    def refuse(self, located: Located, why: str) -> None:
        """Note a chunk that is damaged."""
        words = f"is damaged in {self._saved.describe(located)}: {why}"
        self.add(Damage(pack=located.pack, words=words, position=located.chunk.position))

    def sorted(self) -> tuple[Damage, ...]:
        """By pack and position."""
        return tuple(sorted(self._damages, key=lambda each: (each.pack, each.position or 0)))


def check_packs(  # noqa: PLR0913 - one call, most by name
    saved: Saved,
    packs: Collection[int],
    *,
    workers: int,
    progress: Progress,
    subset: Subset | None = None,
    placed: bool = True,
) -> Checked:
    """Read packs, chunk by chunk, and compare them with the index.

    Args:
        saved: Whose packs.
        packs: Numbers of those that are there, in full length.
        workers: Threads.
        progress: Called with bytes of packs done and in all.
        subset: Which of the chunks; None for all. Headers and footers are always read.
        placed: Also chunks of the saved memory, and not only those that are of none: what
            is written back is compared then.

    Returns:
        What is damaged, all of it and not only the first.

    Raises:
        GpusnapError: Too many files are open.
    """
    found, readable = _Findings(saved), set[int]()
    for number in packs:
        try:
            _check_frame(saved, number)
        except FormatError as error:
            found.add(Damage(pack=number, words=f"is damaged: {error}"))
        except OSError as error:
            require_damage(error, saved.path(number))
            found.add(Damage(pack=number, words=f"cannot be read: {error.strerror or error}"))
            continue
        readable.add(number)
    wanted = [
        each for each in saved.located() if each.pack in readable and (placed or not each.places)
    ]
    chosen = subset.choose(wanted) if subset else wanted
    done = sum(_frame_length(saved, number) for number in readable)
    total = sum(map(_worth, chosen))
    use_chunks(
        saved,
        chosen,
        _check_chunk,
        worth=_worth,
        extent_of=_extent_of,
        workers=workers,
        progress=lambda count, _total: progress(done + count, done + total),
        refuse=found.refuse,
    )
    return Checked(bytes=done + total, damages=found.sorted(), more=found.more)


def _frame_length(saved: Saved, number: int) -> int:
    """Bytes of a pack that are not chunks."""
    chunks = sum(chunk.extent for chunk in saved.tables[number])
    return saved.packs[number].length - chunks


def _check_frame(saved: Saved, number: int) -> None:
    """Header and footer, which the index knows to the last byte."""
    pack = saved.packs[number]
    length = _frame_length(saved, number) - HEADER
    header, footer = bytearray(HEADER), bytearray(length)
    descriptor = open_regular(saved.path(number))
    try:
        size = size_of(descriptor)
        if size != pack.length:
            raise FormatError(f"it has {size} bytes instead of {pack.length}")
        read_exactly(descriptor, memoryview(header), 0)
        read_exactly(descriptor, memoryview(footer), pack.length - length)
    finally:
        os.close(descriptor)
    if header != encode_header(pack.id):
        raise FormatError("its header is not that of the pack in the index")
    check_footer(bytes(footer), pack)


def _worth(located: Located) -> int:
    return located.chunk.extent


def _extent_of(located: Located) -> Extent:
    chunk = located.chunk
    return Extent(chunk.position, chunk.extent, 0, 0, chunk.stored_crc)


def _check_chunk(located: Located, extent: memoryview) -> None:
    if crc32(extent) != located.chunk.stored_crc:
        raise FormatError(MISMATCH)
