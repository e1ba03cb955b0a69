"""What a library of AMD's tells of the GPUs, as it travels from the worker process."""

import msgspec


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one GPU that change while it works; None where the library does not tell.

    Attributes:
        pci: Bus address: ``domain:bus:device.function``, or without the domain where the
            library writes it in more than one way.
        memory_used: Bytes.
        corrected: Memory errors since the driver was loaded; uncorrected likewise.
    """

    pci: str
    memory_used: int | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    bad_pages: int | None = None
    temperature_celsius: int | None = None


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the library that could be loaded, and in sentences why others could not."""

    library: str | None = None
    gpus: tuple[Reading, ...] = ()
    failures: tuple[str, ...] = ()


def count(value: object) -> int | None:
    """Take a number of the library's; older versions say -1 or ``N/A`` where they know none."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
        return value
    return None
