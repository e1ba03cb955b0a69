"""Looks for a whole map: every saved GPU onto one of its own, under rules that tie them together.

GPUs of one XGMI hive go into one hive, different hives into different ones. With the NUMA check
on, a CPU stands for one saved CPU throughout: the first link to a saved CPU picks it among the
CPUs that are free, and every further one needs a link of the same bus to that CPU.

The search backtracks, so it could take as long as it likes; it is given up after a number of
steps instead. A step is one GPU, or one CPU, that is tried.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from gpusnap.types import DeviceLink
from gpusnap_amd.mapping_rules import Check, Gpu, replaces

LIMIT = 20_000
"""Steps; a machine of 64 equal GPUs takes some hundred."""


_Level: TypeAlias = Iterator["_Level | None"]
"""Alternatives of one decision, each in force until the next is asked for; what comes out is the
decision after it, or None where none is left. A stack of them needs no recursion."""


class OutOfStepsError(Exception):
    """The search was given up before it knew."""


def find_hives(gpus: Sequence[Gpu]) -> tuple[frozenset[int], ...]:
    """The hives, as positions of their GPUs: all that XGMI links in both ways join."""
    positions = {gpu.node: position for position, gpu in enumerate(gpus)}
    left = {position for position, gpu in enumerate(gpus) if gpu.neighbours & positions.keys()}
    hives = []
    while left:
        hive, edge = set[int](), {min(left)}
        while edge:
            hive |= edge
            nodes = {node for position in edge for node in gpus[position].neighbours}
            edge = {positions[node] for node in nodes & positions.keys()} - hive
        left -= hive
        hives.append(frozenset(hive))
    return tuple(hives)


class Search:
    """One search for a map.

    Args:
        saved: The GPUs of the snapshot.
        present: The GPUs at hand.
        candidates: For each saved GPU the positions of those that could replace it alone.
        checks: The checks that are on.
        limit: How many steps it may take.

    Attributes:
        steps: How many it took.
        gpus: The map that was found, by positions.
        cpus: The CPUs that were picked with it, by nodes.
    """

    def __init__(
        self,
        saved: Sequence[Gpu],
        present: Sequence[Gpu],
        candidates: Sequence[set[int]],
        checks: frozenset[Check],
        limit: int = LIMIT,
    ) -> None:
        self._saved = saved
        self._present = present
        self._candidates = candidates
        self._numa = Check.NUMA in checks
        self._limit = limit
        self._saved_hives = _hive_of(find_hives(saved))
        self._present_hives = _hive_of(find_hives(present))
        self._saved_sizes = Counter(self._saved_hives.values())
        self._present_sizes = Counter(self._present_hives.values())
        self._order = _hives_first(saved, self._saved_hives)
        self._rank = _ranks(_hives_first(present, self._present_hives))
        self._alike = [
            _alike(gpu, self._present_hives.get(other), _fits(candidates, other))
            for other, gpu in enumerate(present)
        ]
        self._hives: dict[int, int] = {}
        self.steps = 0
        self.gpus: dict[int, int] = {}
        self.cpus: dict[int, int] = {}

    def run(self) -> bool:
        """Look for a map.

        Returns:
            Whether there is one; it then stands in ``gpus`` and ``cpus``.

        Raises:
            OutOfStepsError: It is not known, since the search took too many steps.
        """
        levels = [self._place(0)]
        while levels:
            try:
                level = next(levels[-1])
            except StopIteration:
                levels.pop()
                continue
            if level is None:
                return True
            levels.append(level)
        return False

    def _step(self) -> None:
        if self.steps == self._limit:
            raise OutOfStepsError
        self.steps += 1

    def _place(self, rank: int) -> _Level:
        """Try places for the GPU of this rank."""
        if rank == len(self._order):
            yield None
            return
        position = self._order[rank]
        links = self._saved[position].cpu_links if self._numa else ()
        failed = set()
        for other in self._choices(position, rank):
            if self._alike[other] in failed:  # what failed with its twin fails with this one
                continue
            self._step()
            first = self._bind_hive(position, other)
            self.gpus[position] = other
            yield self._connect(links, other, rank + 1)
            del self.gpus[position]
            if first is not None:
                del self._hives[first]
            failed.add(self._alike[other])

    def _connect(self, links: Sequence[DeviceLink], other: int, rank: int) -> _Level:
        """Give the links to CPUs those of the other GPU, and go on with the next rank."""
        for at, link in enumerate(links):
            if link.node not in self.cpus:
                yield from self._pick(link, links[at + 1 :], other, rank)
                return
            if not self._reaches(link, other):
                return
        yield self._place(rank)

    def _pick(self, link: DeviceLink, rest: Sequence[DeviceLink], other: int, rank: int) -> _Level:
        taken = set(self.cpus.values())
        there = self._present[other].cpu_links
        fitting = dict.fromkeys(each.node for each in there if replaces(link, each))
        for cpu in fitting:
            if cpu not in taken:
                self._step()
                self.cpus[link.node] = cpu
                yield self._connect(rest, other, rank)
                del self.cpus[link.node]

    def _reaches(self, link: DeviceLink, other: int) -> bool:
        cpu = self.cpus[link.node]
        return any(
            there.node == cpu and there.kind == link.kind and replaces(link, there)
            for there in self._present[other].cpu_links
        )

    def _choices(self, position: int, rank: int) -> list[int]:
        """The GPUs that are free for a saved one: itself first, then the one of its rank."""
        name = self._saved[position].name
        used = set(self.gpus.values())
        free = self._candidates[position] - used
        return sorted(
            (other for other in free if self._hive_fits(position, other)),
            key=lambda other: (
                self._present[other].name != name,
                abs(self._rank[other] - rank),
                other,
            ),
        )

    def _hive_fits(self, position: int, other: int) -> bool:
        hive = self._saved_hives.get(position)
        there = self._present_hives.get(other)
        if hive is None:
            return True
        if hive in self._hives:
            return self._hives[hive] == there
        if there is None or there in self._hives.values():
            return False
        return self._present_sizes[there] >= self._saved_sizes[hive]

    def _bind_hive(self, position: int, other: int) -> int | None:
        """Let a hive become another; the saved one where that is new."""
        hive = self._saved_hives.get(position)
        if hive is None or hive in self._hives:
            return None
        self._hives[hive] = self._present_hives[other]
        return hive


def _alike(gpu: Gpu, hive: int | None, fits: frozenset[int]) -> tuple[object, ...]:
    """Equal for two GPUs that can be exchanged in every map."""
    links = tuple(sorted((link.node, link.kind, link.mutual) for link in gpu.cpu_links))
    return hive, fits, links


def _fits(candidates: Sequence[set[int]], other: int) -> frozenset[int]:
    return frozenset(position for position, group in enumerate(candidates) if other in group)


def _hive_of(hives: Sequence[frozenset[int]]) -> dict[int, int]:
    return {position: number for number, hive in enumerate(hives) for position in hive}


def _hives_first(gpus: Sequence[Gpu], hives: Mapping[int, int]) -> list[int]:
    last = len(gpus)
    return sorted(range(len(gpus)), key=lambda position: (hives.get(position, last), position))


def _ranks(order: Sequence[int]) -> dict[int, int]:
    return {position: rank for rank, position in enumerate(order)}
