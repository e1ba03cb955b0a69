"""Which process uses which device, as it travels from the worker to the backend."""

import msgspec


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one device.

    Attributes:
        memory: Bytes, None where the driver does not tell.
        through_mps: True for a client of the multi-process service.
    """

    pid: int
    device_uuid: str
    memory: int | None = None
    through_mps: bool = False


def memory_of(uses: tuple[Use, ...], pids: tuple[int, ...]) -> int:
    """Bytes that the processes hold on all devices, as far as the driver tells."""
    return sum(use.memory or 0 for use in uses if use.pid in pids)
