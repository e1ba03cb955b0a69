"""What must hold of an index, whoever wrote it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from gpusnap.datapath.records import CHUNK, HEADER, Chunk, Codec, Index, footer_length
from gpusnap.datapath.spans import PAGE, Span, span_fault

_CODECS = frozenset(Codec)


def index_fault(index: Index, tables: Sequence[Sequence[Chunk]]) -> str | None:
    """What is wrong with an index, as half a sentence; None where nothing is.

    Args:
        index: As decoded.
        tables: For each pack its chunks.
    """
    if fault := span_fault(index.spans):
        return fault
    for pack, chunks in zip(index.packs, tables, strict=True):
        faults = (_chunk_fault(chunk, index.spans) for chunk in chunks)
        if fault := next(filter(None, faults), None):
            return fault
        end = _end(chunks)
        if end is None or end + footer_length(len(index.spans), len(pack.records)) != pack.length:
            return "the chunks of a pack do not fill it"
    if len({pack.id for pack in index.packs}) != len(index.packs):
        return "two packs are one"
    return "two chunks hold the same memory" if _overlap(tables) else None


def _chunk_fault(chunk: Chunk, spans: Sequence[Span]) -> str | None:
    if chunk.span >= len(spans) or chunk.offset + chunk.length > spans[chunk.span].length:
        return f"the chunk at {chunk.position} is of no memory"
    if chunk.offset % PAGE or chunk.length % PAGE or not 0 < chunk.length <= CHUNK:
        return f"the chunk at {chunk.position} is not made of whole pages"
    if chunk.codec not in _CODECS:
        return f"no codec has number {chunk.codec}"
    raw = chunk.codec == Codec.RAW
    # Raw chunks have no padding, so both of their sums are of the same bytes.
    fits = chunk.stored == chunk.length and chunk.crc == chunk.stored_crc
    if (raw and not fits) or (not raw and not 0 < chunk.stored < chunk.length):
        return f"the chunk at {chunk.position} cannot be stored as it says"
    return None


def _end(chunks: Sequence[Chunk]) -> int | None:
    """Where the chunks of a pack end; None where there is a gap or an overlap."""
    position = HEADER
    for chunk in chunks:
        if chunk.position != position:
            return None
        position += chunk.extent
    return position


def _overlap(tables: Sequence[Iterable[Chunk]]) -> bool:
    ranges = sorted(
        (chunk.span, chunk.offset, chunk.length) for chunks in tables for chunk in chunks
    )
    return any(
        span == next_span and offset + length > next_offset
        for (span, offset, length), (next_span, next_offset, _) in pairwise(ranges)
    )
