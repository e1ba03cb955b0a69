"""What a bench found, as a document that keeps its keys."""

import statistics
from collections.abc import Collection
from typing import Self

import msgspec

from gpusnap.repository import PhaseTime


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured.

    Attributes:
        processor: Its model.
        processors: CPUs that this process may use.
        memory: Bytes in all.
        file_system: Type of the file system that the snapshots were on.
        crc32: The way that CRC-32 is computed.
    """

    processor: str
    processors: int
    memory: int
    kernel: str
    criu_version: str
    gpusnap_version: str
    file_system: str
    crc32: str


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in bytes a second, of all threads together.

    Attributes:
        threads: How many worked at once.
        memcpy: A copy within this process.
        readv: process_vm_readv from another process, in the steps that gpusnap makes.
        copy_crc: The same with CRC-32 on the way: how gpusnap copies.
        zlib_crc32: CRC-32 of zlib, alone.
        crc32: CRC-32 of gpusnap, alone.
        copy_crc_over_readv: Median of ``copy_crc`` over ``readv``, each pair measured together.
    """

    threads: int
    memcpy: int
    readv: int
    copy_crc: int
    zlib_crc32: int
    crc32: int
    copy_crc_over_readv: float


class Native(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of copies and checksums.

    Attributes:
        copy_crc_over_readv: That of ``parallel``.
        bytes: Memory that each measurement went over.
        repeats: Measurements of each kind.
    """

    copy_crc_over_readv: float
    bytes: int
    repeats: int
    single: Rates
    parallel: Rates


class Trip(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint and the restore from it.

    Attributes:
        checkpoint_us: Until the process was gone.
        restore_us: Until it ran again.
        checkpoint_cpu_us: Processor time that gpusnap and CRIU took for the one.
        restore_cpu_us: For the other, that of the process included: it fills its memory itself
            where CRIU is alone.
        stored: Bytes of all files.
        phases: The steps of both, where they are known.
    """

    checkpoint_us: int
    restore_us: int
    checkpoint_cpu_us: int
    restore_cpu_us: int
    stored: int
    phases: tuple[PhaseTime, ...] = ()


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One trip by gpusnap and one by CRIU alone."""

    gpusnap: Trip
    criu: Trip


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """CRIU's time over gpusnap's in the rounds."""

    minimum: float
    median: float
    maximum: float

    @classmethod
    def of(cls, values: Collection[float]) -> Self:
        """Sum up some values, at least one."""
        return cls(minimum=min(values), median=statistics.median(values), maximum=max(values))


class Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as fast as CRIU alone gpusnap is."""

    checkpoint: Spread
    restore: Spread

    @classmethod
    def of(cls, rounds: Collection[Round]) -> Self:
        """Those of some rounds, at least one."""
        return cls(
            checkpoint=Spread.of([r.criu.checkpoint_us / r.gpusnap.checkpoint_us for r in rounds]),
            restore=Spread.of([r.criu.restore_us / r.gpusnap.restore_us for r in rounds]),
        )


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        size: Bytes of memory that the process had.
        compress: How gpusnap compressed.
        workers: Threads of gpusnap.
    """

    machine: Machine
    size: int
    compress: str
    workers: int
    native: Native
    rounds: tuple[Round, ...]
    ratios: Ratios
