"""How a restore is made."""

import msgspec

from gpusnap.criu import Leash, Overlay
from gpusnap.device_map import NO_CHOICE, DeviceChoice
from gpusnap.errors import UsageError

DEFAULT_TIMEOUT_US = 30 * 60 * 1_000_000


class RestoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a restore is made.

    Attributes:
        backend: Backend to use instead of the snapshot's.
        timeout_us: How long CRIU may take, in microseconds.
        verify_memory: Read filled memory back and compare it.
        thp: Have the kernel use huge pages, on the whole machine, while memory is filled.
        new_pids: Restore into a PID namespace of its own, so that the PIDs need not be free.
        workers: Threads that fill memory; None for one a CPU.
        leash: What the processes stay on, which get new PIDs, so that they end with its holder;
            None for processes that outlive it.
        overlays: What is private to the processes, which then get new PIDs too.
        devices: On which devices, where the user chooses them.
        overrides: Values for the restored program; see
            :func:`gpusnap.inprocess.answers.check_overrides`.
        force: Codes of error findings to override.
    """

    backend: str | None = None
    timeout_us: int = DEFAULT_TIMEOUT_US
    verify_memory: bool = False
    new_pids: bool = False
    workers: int | None = None
    thp: bool = False
    leash: Leash | None = None
    overlays: tuple[Overlay, ...] = ()
    devices: DeviceChoice = NO_CHOICE
    overrides: dict[str, str] = {}
    force: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"{self.workers} workers cannot fill anything", cure="Give 1 or more")
        if self.overlays and not self.new_pids:
            msg = "A folder can be private only to processes with new PIDs"
            raise UsageError(msg, cure="Give new_pids too")


DEFAULTS = RestoreOptions()
