"""Which process is which, as a target program and the simulated driver ask for it."""

from gpusnap.target import alive, identity, myself
from gpusnap.types import ProcessId

is_alive = alive
"""True while that very process lives."""


def identify(pid: int) -> ProcessId | None:
    """The identity of a living process; None where there is none or only a zombie."""
    found = identity(pid)
    return found if found is not None and alive(found) else None


def own_identity() -> ProcessId:
    """Identity of this process as others see it, which changes when it is restored."""
    return myself()
