"""What became of the memory, for the report."""

from collections import Counter
from collections.abc import Iterable

from gpusnap.datapath.identities import Home
from gpusnap.datapath.joining import Joined, Kept
from gpusnap.datapath.records import Codec, Pack
from gpusnap.types import CodecUse, SavedMemory


def summarize(  # noqa: PLR0913 - one call, most by name
    read: int,
    packs: Iterable[Pack],
    kept: Kept,
    joined: Joined,
    *,
    identities: bool,
    images: int,
) -> SavedMemory:
    """Add up what was saved.

    Args:
        read: Bytes that were copied out of the processes, zeros included.
        packs: Those that were written from memory.
        kept: Where each piece of memory is.
        joined: What came of them and the parent.
        identities: Whether the chunks have some.
        images: Bytes of the image files that are part of it.
    """
    uses = _uses(packs)
    reused, duplicates = _shared(kept)
    return SavedMemory(
        raw=read,
        zero=read - sum(data.length for data, _ in kept),
        stored=sum(use.stored for use in uses) + joined.copied,
        codecs=uses,
        reused=reused,
        duplicates=duplicates,
        linked=joined.linked,
        identities=identities,
        images=images,
    )


def _uses(packs: Iterable[Pack]) -> tuple[CodecUse, ...]:
    count: Counter[int] = Counter()
    raw: Counter[int] = Counter()
    stored: Counter[int] = Counter()
    for chunk in (chunk for pack in packs for chunk in pack.chunks()):
        count[chunk.codec] += 1
        raw[chunk.codec] += chunk.length
        stored[chunk.codec] += chunk.extent
    return tuple(
        CodecUse(codec=Codec(codec).label, chunks=chunks, raw=raw[codec], stored=stored[codec])
        for codec, chunks in sorted(count.items())
    )


def _shared(kept: Kept) -> tuple[int, int]:
    """Bytes that the parent has, and bytes that came a second time."""
    reused = duplicates = 0
    seen: set[Home] = set()
    for data, stored in kept:
        home = stored.require()
        if home.in_parent:
            reused += data.length
        elif home in seen:
            duplicates += data.length
        seen.add(home)
    return reused, duplicates
