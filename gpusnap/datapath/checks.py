"""What must hold of an index, whoever wrote it."""

from collections.abc import Sequence

from gpusnap.datapath.records import (
    CHUNK,
    HEADER,
    Chunk,
    Codec,
    Index,
    Pack,
    footer_spans,
)
from gpusnap.datapath.spans import PAGE, span_fault, whole_pages

_CODECS = frozenset(int(codec) for codec in Codec)
_GAP = "the chunks of a pack do not fill it"


def index_fault(index: Index, tables: Sequence[Sequence[Chunk]]) -> str | None:
    """What is wrong with an index, as half a sentence; None where nothing is.

    Args:
        index: As decoded.
        tables: For each pack its chunks.
    """
    if fault := span_fault(index.spans, index.images):
        return fault
    for pack, chunks in zip(index.packs, tables, strict=True):
        if fault := _table_fault(pack, chunks):
            return fault
    if len({pack.id for pack in index.packs}) != len(index.packs):
        return "two packs are one"
    return _places_fault(index, tables)


# One loop without a call for each chunk: of these there may be very many, and a program waits


def _table_fault(pack: Pack, chunks: Sequence[Chunk]) -> str | None:
    """Also whether nothing but chunks is between header and footer, without gap or overlap."""
    position = HEADER
    for at, length, stored, codec, crc, stored_crc, _identity in chunks:
        if length % PAGE or not 0 < length <= CHUNK:
            return f"the chunk at {at} is not made of whole pages"
        if codec not in _CODECS:
            return f"no codec has number {codec}"
        # Raw chunks have no padding, so both of their sums are of the same bytes.
        raw = stored == length and crc == stored_crc
        if not (0 < stored < length if codec else raw):
            return f"the chunk at {at} cannot be stored as it says"
        if at != position:
            return _GAP
        position += whole_pages(stored)
    if footer_spans(pack.length - position, len(pack.records)) is None:
        return _GAP
    return None


def _places_fault(index: Index, tables: Sequence[Sequence[Chunk]]) -> str | None:
    ends = [whole_pages(span.length) for span in index.spans]
    counts = [len(table) for table in tables]
    reached = last = 0
    for offset, span, pack, number in index.places:
        exists = span < len(ends) and pack < len(counts) and number < counts[pack]
        end = offset + tables[pack][number].length if exists else 0
        if not exists or offset % PAGE or end > ends[span]:
            return f"the memory at {offset} of span {span} is in no chunk"
        if span != last:
            if span < last:
                return "its places are not in order"
            reached, last = 0, span
        if offset < reached:
            return "two chunks hold the same memory"
        reached = end
    return None
