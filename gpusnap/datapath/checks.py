"""What must hold of an index, whoever wrote it."""

from collections.abc import Sequence
from itertools import pairwise

from gpusnap.datapath.records import (
    CHUNK,
    HEADER,
    Chunk,
    Codec,
    Index,
    Pack,
    Place,
    footer_spans,
)
from gpusnap.datapath.spans import PAGE, span_fault, whole_pages

_CODECS = frozenset(Codec)


def index_fault(index: Index, tables: Sequence[Sequence[Chunk]]) -> str | None:
    """What is wrong with an index, as half a sentence; None where nothing is.

    Args:
        index: As decoded.
        tables: For each pack its chunks.
    """
    if fault := span_fault(index.spans, index.images):
        return fault
    for pack, chunks in zip(index.packs, tables, strict=True):
        faults = map(_chunk_fault, chunks)
        if fault := next(filter(None, faults), None):
            return fault
        if not _filled(pack, chunks):
            return "the chunks of a pack do not fill it"
    if len({pack.id for pack in index.packs}) != len(index.packs):
        return "two packs are one"
    return _places_fault(index, tables)


def _chunk_fault(chunk: Chunk) -> str | None:
    if chunk.length % PAGE or not 0 < chunk.length <= CHUNK:
        return f"the chunk at {chunk.position} is not made of whole pages"
    if chunk.codec not in _CODECS:
        return f"no codec has number {chunk.codec}"
    raw = chunk.codec == Codec.RAW
    # Raw chunks have no padding, so both of their sums are of the same bytes.
    fits = chunk.stored == chunk.length and chunk.crc == chunk.stored_crc
    if (raw and not fits) or (not raw and not 0 < chunk.stored < chunk.length):
        return f"the chunk at {chunk.position} cannot be stored as it says"
    return None


def _filled(pack: Pack, chunks: Sequence[Chunk]) -> bool:
    """Whether nothing but chunks is between header and footer, without gap or overlap."""
    position = HEADER
    for chunk in chunks:
        if chunk.position != position:
            return False
        position += chunk.extent
    return footer_spans(pack.length - position, len(pack.records)) is not None


def _places_fault(index: Index, tables: Sequence[Sequence[Chunk]]) -> str | None:
    end = span = 0
    for place in index.places:
        if not _exists(place, index, tables):
            return f"the memory at {place.offset} of span {place.span} is in no chunk"
        if place.span != span:
            end, span = 0, place.span
        if place.offset < end:
            return "two chunks hold the same memory"
        end = place.offset + tables[place.pack][place.chunk].length
    if any(after.span < before.span for before, after in pairwise(index.places)):
        return "its places are not in order"
    return None


def _exists(place: Place, index: Index, tables: Sequence[Sequence[Chunk]]) -> bool:
    if place.span >= len(index.spans) or place.offset % PAGE or place.pack >= len(tables):
        return False
    table = tables[place.pack]
    if place.chunk >= len(table):
        return False
    end = place.offset + table[place.chunk].length
    return end <= whole_pages(index.spans[place.span].length)
