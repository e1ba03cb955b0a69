"""Whether the packs of a snapshot are what the manifest and their index say."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from gpusnap.datapath import Checked, Saved, Subset, check_packs, pack_name
from gpusnap.errors import IntegrityError
from gpusnap.hookspecs import Progress
from gpusnap.repository.digest import FileDigest, pack_digests
from gpusnap.repository.judgement import altered, chunk_fault, judge_unread, more_faults
from gpusnap.repository.layout import REGIONS
from gpusnap.repository.tree import Entry
from gpusnap.types import Finding

INDEX_PATH = f"{REGIONS}/index"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How packs are read.

    Attributes:
        workers: By how many threads.
        subset: Which part of them; None for all.
        placed: Also the memory that was saved, and not only what else they hold.
    """

    workers: int
    subset: Subset | None = None
    placed: bool = True


class PacksVerified(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of packs and found; figures as of a whole verification.

    Attributes:
        saved: What their index tells; None where there are none, or it cannot be used.
    """

    files: int = 0
    bytes: int = 0
    findings: tuple[Finding, ...] = ()
    saved: Saved | None = None


def verify_packs(
    folder: Path,
    packs: Mapping[str, FileDigest],
    entries: Mapping[str, Entry],
    progress: Progress,
    reading: Reading | None,
) -> PacksVerified:
    """Compare packs with their index, chunk by chunk.

    Args:
        folder: The snapshot's.
        packs: What the manifest says of them, by path.
        entries: What is there.
        progress: Called with bytes read and bytes in all.
        reading: How; None where the index is damaged, so that only lengths can be compared.

    Raises:
        IncompatibleError: A newer gpusnap wrote the index.
    """
    wrong = {
        path: finding
        for path, file in packs.items()
        if (finding := judge_unread(file, entries.get(path)))
    }
    if not packs or reading is None:
        return PacksVerified(findings=tuple(wrong.values()))
    try:
        saved = Saved(folder / REGIONS)
    except IntegrityError as error:
        finding = altered(INDEX_PATH, f"cannot be used: {error.text}")
        return PacksVerified(findings=(*wrong.values(), finding))
    wrong |= _strangers(saved, packs)
    paths = [f"{REGIONS}/{pack_name(number)}" for number in range(len(saved.packs))]
    wanted = [number for number, path in enumerate(paths) if path not in wrong]
    checked = check_packs(
        saved,
        wanted,
        workers=reading.workers,
        progress=progress,
        subset=reading.subset,
        placed=reading.placed,
    )
    return PacksVerified(
        files=len(wanted),
        bytes=checked.bytes,
        findings=(*wrong.values(), *_findings(checked, paths)),
        saved=saved,
    )


def _strangers(saved: Saved, packs: Mapping[str, FileDigest]) -> dict[str, Finding]:
    """Packs of which the manifest and the index say different things: neither is believed."""
    indexed = {digest.path: digest for digest in pack_digests(saved.packs)}
    different = {
        path for path in indexed.keys() | packs.keys() if indexed.get(path) != packs.get(path)
    }
    text = "is in the manifest another file than in the index"
    return {path: altered(path, text) for path in sorted(different)}


def _findings(checked: Checked, paths: list[str]) -> Iterator[Finding]:
    for each in checked.damages:
        kind = altered if each.position is None else chunk_fault
        yield kind(paths[each.pack], each.words)
    if checked.more:
        yield more_faults(checked.more)
