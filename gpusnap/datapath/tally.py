"""What became of the memory, for the report."""

from collections import Counter
from collections.abc import Iterable

from gpusnap.datapath.records import Codec, Pack
from gpusnap.types import CodecUse, SavedMemory


def summarize(read: int, packs: Iterable[Pack]) -> SavedMemory:
    """Add up what packs hold.

    Args:
        read: Bytes that were copied, zeros included.
        packs: All of them.
    """
    count: Counter[int] = Counter()
    raw: Counter[int] = Counter()
    stored: Counter[int] = Counter()
    for pack in packs:
        for chunk in pack.chunks():
            count[chunk.codec] += 1
            raw[chunk.codec] += chunk.length
            stored[chunk.codec] += chunk.extent
    uses = (
        CodecUse(codec=Codec(codec).label, chunks=chunks, raw=raw[codec], stored=stored[codec])
        for codec, chunks in sorted(count.items())
    )
    return SavedMemory(raw=read, zero=read - raw.total(), stored=stored.total(), codecs=tuple(uses))
