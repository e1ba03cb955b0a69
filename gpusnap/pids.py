"""The same process by two numbers: in a PID namespace of its own, and as gpusnap sees it.

All in a snapshot goes by the PIDs that the target itself sees. Where it lives in a namespace of
its own, gpusnap, the driver and the user know its processes by others.
"""

from collections.abc import Iterable

import msgspec

from gpusnap.errors import NotFoundError
from gpusnap.target import pid_namespace, pids_in


class PidMap(msgspec.Struct, frozen=True):
    """What the PIDs of one namespace are in another.

    Attributes:
        pairs: Each PID with the other one; None where they are the same.
    """

    pairs: dict[int, int] | None = None

    def translate(self, pid: int) -> int:
        """The other PID of a process.

        Raises:
            NotFoundError: It has none.
        """
        if self.pairs is None:
            return pid
        if pid not in self.pairs:
            raise NotFoundError(f"Process {pid} has no PID in the target's namespace, or ended")
        return self.pairs[pid]

    def translate_all(self, pids: Iterable[int]) -> tuple[int, ...]:
        """The other PIDs of processes; errors as :meth:`translate`."""
        return tuple(map(self.translate, pids))

    def get(self, pid: int) -> int:
        """The other PID of a process, 0 where it has none, as the kernel writes that."""
        return pid if self.pairs is None else self.pairs.get(pid, 0)

    @property
    def inverse(self) -> "PidMap":
        """The way back."""
        pairs = self.pairs
        return PidMap(pairs and {other: pid for pid, other in pairs.items()})


SAME = PidMap()
"""Every process has the same PID in both."""


def map_of(member: int) -> PidMap:
    """From the PIDs inside the namespace of a process, told by its PID here, to those here."""
    return PidMap(pids_in(pid_namespace(member) or ""))
