"""Decides whether processes saved on some GPUs can come back on others.

The answer follows the rules by which CRIU's amdgpu plugin maps GPUs when it restores. The plugin
then searches for itself: it may overlook a map, and on rare topologies it never ends.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from gpusnap.types import Compatibility, Device, DeviceMap, Finding, Incompatible, Severity
from gpusnap_amd.mapping_rules import (
    ALL,
    Check,
    Difference,
    Gpu,
    active_checks,
    differences,
    gpu_of,
)
from gpusnap_amd.mapping_search import LIMIT, OutOfStepsError, Search, find_hives

_KIND = ("vendor_id", "device_id", "model")
"""Where one of these differs it is another GPU, and all other differences follow."""


class Reason(StrEnum):
    """Why there is no map."""

    COUNT = "count"
    HIVES = "hives"
    GPUS = "gpus"
    """Not every saved GPU has one that could replace it, looking at pairs alone."""
    TOGETHER = "together"
    """Every saved GPU has one, but not all at once."""
    UNKNOWN = "unknown"
    """The search was given up."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A map: names of GPUs and nodes of CPUs, in the saved order, and the steps it took."""

    gpus: tuple[tuple[str, str], ...]
    cpus: tuple[tuple[int, int], ...]
    steps: int


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """A saved GPU that is left over, and what keeps the likest GPU at hand from replacing it."""

    saved: Gpu
    present: Gpu
    differences: tuple[Difference, ...]


class NotFound(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no map, and the steps it took to know."""

    reason: Reason
    obstacles: tuple[Obstacle, ...] = ()
    steps: int = 0


def find_map(
    saved: Sequence[Gpu],
    present: Sequence[Gpu],
    checks: frozenset[Check] = ALL,
    limit: int = LIMIT,
) -> Found | NotFound:
    """Find a GPU at hand for every saved one.

    Args:
        saved: The GPUs of the snapshot.
        present: The GPUs at hand.
        checks: The checks that are on.
        limit: How many steps the search may take.
    """
    if len(saved) != len(present):
        return NotFound(reason=Reason.COUNT)
    if len(find_hives(saved)) > len(find_hives(present)):
        return NotFound(reason=Reason.HIVES)
    candidates = [
        {
            position
            for position, other in enumerate(present)
            if next(differences(gpu, other, checks), None) is None
        }
        for gpu in saved
    ]
    partners = _pair(candidates)
    if len(partners) < len(saved):
        obstacles = tuple(_obstacles(saved, present, partners, checks))
        return NotFound(reason=Reason.GPUS, obstacles=obstacles)
    return _search(Search(saved, present, candidates, checks, limit), saved, present)


def _search(search: Search, saved: Sequence[Gpu], present: Sequence[Gpu]) -> Found | NotFound:
    try:
        found = search.run()
    except OutOfStepsError:
        return NotFound(reason=Reason.UNKNOWN, steps=search.steps)
    if not found:
        return NotFound(reason=Reason.TOGETHER, steps=search.steps)
    return Found(
        gpus=tuple(
            (gpu.name, present[search.gpus[position]].name) for position, gpu in enumerate(saved)
        ),
        cpus=tuple(sorted(search.cpus.items())),
        steps=search.steps,
    )


def _pair(candidates: Sequence[set[int]]) -> dict[int, int]:
    """As many pairs as possible, the GPUs at hand to the saved ones (Kuhn's algorithm)."""
    partners: dict[int, int] = {}

    def place(position: int, tried: set[int]) -> bool:
        for other in sorted(candidates[position] - tried):
            tried.add(other)
            if other not in partners or place(partners[other], tried):
                partners[other] = position
                return True
        return False

    for position in range(len(candidates)):
        place(position, set())
    return partners


def _obstacles(
    saved: Sequence[Gpu],
    present: Sequence[Gpu],
    partners: Mapping[int, int],
    checks: frozenset[Check],
) -> Iterator[Obstacle]:
    """Set every saved GPU that is left over beside the likest one at hand that is left over."""
    placed = set(partners.values())
    free = [other for position, other in enumerate(present) if position not in partners]
    for position, gpu in enumerate(saved):
        if position not in placed:
            compared = [(_compare(gpu, other, checks), other) for other in free]
            found, other = min(compared, key=lambda pair: _distance(pair[0]))
            free.remove(other)
            yield Obstacle(saved=gpu, present=other, differences=found)


def _compare(gpu: Gpu, other: Gpu, checks: frozenset[Check]) -> tuple[Difference, ...]:
    found = tuple(differences(gpu, other, checks))
    kinds = tuple(each for each in found if each.what in _KIND)
    return kinds or found


def _distance(found: Sequence[Difference]) -> tuple[bool, int, int]:
    """How unlike two GPUs are: of another kind, then what no check lets pass, then the rest."""
    other_kind = any(each.what in _KIND for each in found)
    return other_kind, sum(each.check is None for each in found), len(found)


def find_remedy(
    saved: Sequence[Gpu], present: Sequence[Gpu], checks: frozenset[Check] = ALL, limit: int = LIMIT
) -> frozenset[Check]:
    """The checks that would have to be off for a map; none where that does not help."""
    off = frozenset(checks)
    if isinstance(find_map(saved, present, frozenset(), limit), NotFound):
        return frozenset()
    for check in Check:  # in their fixed order, so that the answer is always the same
        fewer = off - {check}
        if isinstance(find_map(saved, present, checks - fewer, limit), Found):
            off = fewer
    return off


def compatible(
    saved: tuple[Device, ...],
    devices: tuple[Device, ...],
    environment: Mapping[str, str] = os.environ,
) -> Compatibility:
    """Map every saved GPU to one at hand, or say which property of which GPU stands in the way.

    Args:
        saved: The devices of the snapshot.
        devices: The devices at hand.
        environment: Where the variables that turn checks off are looked for.
    """
    checks = active_checks(environment)
    old, new = tuple(map(gpu_of, saved)), tuple(map(gpu_of, devices))
    found = find_map(old, new, checks)
    if isinstance(found, Found):
        return DeviceMap(pairs=found.gpus)
    remedy = find_remedy(old, new, checks)
    return Incompatible(findings=tuple(_findings(found, old, new, remedy)))


def _findings(
    found: NotFound, saved: Sequence[Gpu], present: Sequence[Gpu], remedy: frozenset[Check]
) -> Iterator[Finding]:
    match found.reason:
        case Reason.COUNT:
            text = f"The snapshot has {len(saved)} GPUs, this machine has {len(present)}"
            yield _finding("device-count", text, "Restore on a machine with as many GPUs")
        case Reason.HIVES:
            text = (
                f"The GPUs of the snapshot form {len(find_hives(saved))} XGMI hives, those of this "
                f"machine {len(find_hives(present))}"
            )
            yield _finding("device-links", text, "Restore on a machine with as many hives")
        case Reason.GPUS:
            for obstacle in found.obstacles:
                for difference in obstacle.differences:
                    yield _difference(obstacle, difference, remedy)
        case Reason.TOGETHER:
            text = (
                "Each GPU of the snapshot could be replaced, but not all at once: their links to "
                "CPUs, or their hives, differ"
            )
            yield _finding("device-links", text, _cure(remedy))
        case Reason.UNKNOWN:
            text = f"Whether the GPUs fit was not found out in {found.steps} steps"
            yield _finding("device-links", text, _cure(remedy))


def _difference(obstacle: Obstacle, difference: Difference, remedy: frozenset[Check]) -> Finding:
    old, new = obstacle.saved, obstacle.present
    was, is_ = (
        "unknown" if value is None else value for value in (difference.saved, difference.present)
    )
    if difference.what.startswith("link to"):
        is_ = "not there"
    return _finding(
        _code(difference.what),
        f"GPU {new.index} ({new.name}) cannot replace GPU {old.index} of the snapshot "
        f"({old.name}): {difference.what} was {was}, is {is_}",
        _cure(remedy),
    )


def _code(what: str) -> str:
    if what in _KIND:
        return "device-model"
    if what == "vram_size":
        return "device-memory"
    return "device-links" if "link" in what else "device-property"


def _cure(remedy: frozenset[Check]) -> str:
    if remedy:
        off = " ".join(f"{check.value}=0" for check in Check if check in remedy)
        return f"Set {off} to let CRIU try all the same, or restore on the like of the saved GPUs"
    return "Restore on the like of the saved GPUs"


def _finding(code: str, text: str, cure: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, text=text, cure=cure)
