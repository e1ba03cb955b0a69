"""What became of the memory, for the report."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpusnap.datapath.identities import Home
from gpusnap.datapath.joining import Joined, Kept
from gpusnap.datapath.pack import Use
from gpusnap.datapath.records import Codec
from gpusnap.types import CodecUse, SavedMemory


def summarize(  # noqa: PLR0913 - one call, all by name
    *,
    raw: int,
    zero: int,
    uses: Iterable[Mapping[int, Use]],
    kept: Kept,
    joined: Joined,
    identities: bool,
    images: int,
) -> SavedMemory:
    """Add up what was saved.

    Args:
        raw: Bytes that were copied out of the processes, zeros included.
        zero: Of them, bytes of pages of zeros.
        uses: For each pack that was written from memory what the codecs made of it.
        kept: Where memory is that has an identity.
        joined: What came of that and the parent.
        identities: Whether the chunks have some.
        images: Bytes of the image files that are part of it.
    """
    codecs = tuple(_codecs(uses))
    reused, duplicates = _shared(kept)
    return SavedMemory(
        raw=raw,
        zero=zero,
        stored=sum(use.stored for use in codecs) + joined.copied,
        codecs=codecs,
        reused=reused,
        duplicates=duplicates,
        linked=joined.linked,
        identities=identities,
        images=images,
    )


def _codecs(uses: Iterable[Mapping[int, Use]]) -> Iterable[CodecUse]:
    total: defaultdict[int, Use] = defaultdict(Use)
    for pack in uses:
        for codec, use in pack.items():
            total[codec].add(use.chunks, use.raw, use.stored)
    for codec, use in sorted(total.items()):
        label = Codec(codec).label
        yield CodecUse(codec=label, chunks=use.chunks, raw=use.raw, stored=use.stored)


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
