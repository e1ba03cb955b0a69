"""Saved memory in a folder, as its index tells."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from gpusnap.datapath.checks import index_fault
from gpusnap.datapath.files import damage, opened, read_whole, size_of
from gpusnap.datapath.records import (
    INDEX,
    INDEX_LIMIT,
    Chunk,
    FormatError,
    Pack,
    Place,
    decode_index,
    pack_name,
)
from gpusnap.datapath.spans import Image, Span


class Located(NamedTuple):
    """A chunk, the number of its pack, and the memory that it is for.

    A pack that was taken over from another snapshot may hold chunks without a place.
    """

    pack: int
    chunk: Chunk
    places: tuple[Place, ...]


class Saved:
    """What a :class:`~gpusnap.datapath.Saver` left in a folder.

    Attributes:
        folder: With packs and index.
        spans: The memory that was saved, in the order in which it was given.
        images: The image files that were saved as memory is, by their numbers.
        packs: By their numbers.
        places: Where each piece of the memory is.
        tables: For each pack its chunks.
    """

    def __init__(self, folder: Path) -> None:
        """Read and check the index; the packs are not looked at.

        Raises:
            IntegrityError: It is damaged or missing.
            IncompatibleError: A newer gpusnap wrote it.
            PrivilegeError: It may not be read.
        """
        self.folder = folder
        with damage(folder / INDEX):
            index = decode_index(read_whole(folder / INDEX, INDEX_LIMIT))
            self.tables: list[list[Chunk]] = [pack.chunks() for pack in index.packs]
            if fault := index_fault(index, self.tables):
                raise FormatError(fault)
        self.spans: tuple[Span, ...] = index.spans
        self.images: tuple[Image, ...] = index.images
        self.packs: tuple[Pack, ...] = index.packs
        self.places: tuple[Place, ...] = index.places
        self._located: list[Located] | None = None

    def path(self, pack: int) -> Path:
        """The file of a pack."""
        return self.folder / pack_name(pack)

    def require_packs(self) -> None:
        """Compare the lengths of all packs with the index.

        Raises:
            IntegrityError: One is missing or of another length.
            PrivilegeError: One may not be read.
        """
        for number, pack in enumerate(self.packs):
            with opened(self.path(number)) as descriptor:
                size = size_of(descriptor)
                if size != pack.length:
                    raise FormatError(f"it has {size} bytes instead of {pack.length}")

    def located(self) -> list[Located]:
        """All chunks of all packs, pack by pack, by rising position."""
        if self._located is None:
            self._located = self._locate()
        return self._located

    def _locate(self) -> list[Located]:
        found: list[list[tuple[Place, ...]]] = [[()] * len(table) for table in self.tables]
        shared: defaultdict[tuple[int, int], list[Place]] = defaultdict(list)
        for place in self.places:
            _offset, _span, pack, number = place
            if found[pack][number]:
                shared[pack, number].append(place)
            else:
                found[pack][number] = (place,)
        for (pack, number), more in shared.items():
            found[pack][number] += tuple(more)
        return [
            Located(pack, chunk, places)
            for pack, table in enumerate(self.tables)
            for chunk, places in zip(table, found[pack], strict=True)
        ]

    def describe(self, located: Located) -> str:
        """Where a chunk is and whose memory it holds, in words."""
        text = f"the chunk at {located.chunk.position}"
        if not located.places:
            return f"{text} (of an earlier snapshot)"
        place = located.places[0]
        span = self.spans[place.span]
        start = span.start + place.offset
        if span.of_image:
            return f"{text} ({self.images[span.pid].name}, byte {start})"
        return f"{text} (process {span.pid}, {start:#x})"
