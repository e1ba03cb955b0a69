"""Puts together what was stored anew and what the parent has."""

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

import msgspec

from gpusnap.datapath.checker import check_packs
from gpusnap.datapath.files import opened, read_exactly
from gpusnap.datapath.identities import Home, Parent, Stored
from gpusnap.datapath.pack import PackWriter
from gpusnap.datapath.records import Chunk, Origin, Pack, Place, pack_name
from gpusnap.datapath.source import Data
from gpusnap.datapath.spans import Span
from gpusnap.errors import IntegrityError
from gpusnap.hookspecs import Progress
from gpusnap.native import crc32

MOST_LINKED = 64
"""Packs of a parent that are taken over as they are, those of which most is used.

What is used of others is copied into one, so that packs do not pile up over generations.
"""

_WORTH = 2
"""A pack is taken over where at least one byte in so many is used."""

_CURE = "Name another snapshot with --parent, or leave --incremental out"

Kept: TypeAlias = Sequence[tuple[Data, Stored]]


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """Saved memory, complete.

    Attributes:
        packs: All packs of the folder by their numbers.
        places: Where each piece of memory is.
        linked: Bytes of packs that are files of the parent as well.
        copied: Bytes of extents that were copied from packs of the parent.
    """

    packs: tuple[Pack, ...]
    places: tuple[Place, ...]
    linked: int = 0
    copied: int = 0


def join(  # noqa: PLR0913 - one call, all by name
    *,
    folder: Path,
    spans: Sequence[Span],
    packs: Sequence[Pack],
    places: Sequence[Place],
    kept: Kept,
    parent: Parent | None,
    progress: Progress,
    checkers: int = 0,
) -> Joined:
    """Bring in what the parent has of the memory.

    Packs of which much is used are hard links from then on; of others the chunks are copied,
    as also where the file system makes no more links. A damaged pack that was checked is not
    linked, so that of it only what is intact and used comes in. Nothing of the parent is
    written to.

    Args:
        folder: Where the packs are.
        spans: The memory.
        packs: What was stored anew, by number.
        places: Where memory is that was stored without a look at what there is already.
        kept: Where each piece of other memory is stored.
        parent: Where some of it is.
        progress: Called with bytes that were checked and copied, and that are to be.
        checkers: Threads that check packs before they are linked; 0 to leave that out.

    Raises:
        IntegrityError: A chunk of the parent that is to be copied is damaged.
        GpusnapError: The disk refused.
    """
    if parent is None:
        return Joined(packs=tuple(packs), places=_sorted([*places, *_places(kept, {})]))
    joining = _Joining(folder, packs, parent, progress)
    used = sorted({home for _, stored in kept if (home := stored.require()).in_parent})
    joining.copy(joining.link(used, checkers), spans, _origins(kept))
    return Joined(
        packs=tuple(joining.packs),
        places=_sorted([*places, *_places(kept, joining.moved)]),
        linked=joining.linked,
        copied=joining.copied,
    )


def _origins(kept: Kept) -> dict[Home, Origin]:
    """For each chunk some memory that is in it."""
    return {stored.require(): Origin(data.offset, data.span) for data, stored in kept}


def _places(kept: Kept, moved: dict[Home, Home]) -> Iterator[Place]:
    for data, stored in kept:
        home = stored.require()
        home = moved.get(home, home)
        yield Place(data.offset, data.span, home.pack, home.chunk)


def _sorted(places: list[Place]) -> tuple[Place, ...]:
    return tuple(sorted(places, key=attrgetter("span", "offset")))


class _Joining:
    """The packs of the folder while those of the parent come in."""

    def __init__(
        self, folder: Path, packs: Iterable[Pack], parent: Parent, progress: Progress
    ) -> None:
        self._folder = folder
        self._parent = parent.saved
        self._progress = progress
        self._checked = 0
        self.packs = list(packs)
        self.moved: dict[Home, Home] = {}
        self.linked = 0
        self.copied = 0

    def link(self, used: Sequence[Home], checkers: int) -> list[Home]:
        """Take over packs of the parent; gives the chunks that are in none of them."""
        size: Counter[int] = Counter()
        for home in used:
            size[home.pack] += self._chunk(home).extent
        worth = [
            number
            for number, count in size.most_common()
            if count * _WORTH >= self._parent.packs[number].length
        ]
        chosen = worth[:MOST_LINKED]
        if checkers:
            chosen = self._intact(chosen, checkers)
        numbers = {old: new for old in chosen if (new := self._link(old)) is not None}
        self.moved = {
            home: Home(numbers[home.pack], home.chunk) for home in used if home.pack in numbers
        }
        return [home for home in used if home.pack not in numbers]

    def _intact(self, numbers: Sequence[int], workers: int) -> list[int]:
        """The packs that can be relied on, to the last byte: a restore asks for no less."""
        found = check_packs(self._parent, numbers, workers=workers, progress=self._progress)
        self._checked = found.bytes
        # Of very many damaged chunks some are only counted, of whatever pack they are.
        if found.more:
            return []
        wrong = {damage.pack for damage in found.damages}
        return [number for number in numbers if number not in wrong]

    def _link(self, old: int) -> int | None:
        new = len(self.packs)
        try:
            source = self._parent.path(old)
            os.link(source, self._folder / pack_name(new), follow_symlinks=False)
        except OSError:
            return None  # too many links, for one; the chunks are copied then
        self.packs.append(self._parent.packs[old])
        self.linked += self._parent.packs[old].length
        return new

    def copy(
        self,
        homes: Sequence[Home],
        spans: Sequence[Span],
        origins: dict[Home, Origin],
    ) -> None:
        """Copy chunks of the parent, as they are stored, into a pack of their own."""
        total = sum(self._chunk(home).extent for home in homes)
        with closing(PackWriter(self._folder, itertools.count(len(self.packs)))) as writer:
            for number, group in itertools.groupby(homes, key=lambda home: home.pack):
                for home, extent in self._extents(number, group):
                    chunk = self._chunk(home)
                    self.moved[home] = writer.add(chunk, (extent,), origins[home])
                    self.copied += len(extent)
                    self._progress(self._checked + self.copied, self._checked + total)
            pack = writer.seal(spans)
        if pack is not None:
            self.packs.append(pack)

    def _extents(self, number: int, homes: Iterable[Home]) -> Iterator[tuple[Home, memoryview]]:
        path = self._parent.path(number)
        with opened(path, _CURE) as descriptor:
            for home in homes:
                chunk = self._chunk(home)
                extent = memoryview(bytearray(chunk.extent))
                read_exactly(descriptor, extent, chunk.position)
                if crc32(extent) != chunk.stored_crc:
                    text = f"{path}, of the parent, is damaged in the chunk at {chunk.position}"
                    raise IntegrityError(text, cure=_CURE)
                yield home, extent

    def _chunk(self, home: Home) -> Chunk:
        return self._parent.tables[home.pack][home.chunk]
