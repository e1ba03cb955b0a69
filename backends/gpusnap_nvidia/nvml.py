"""Devices and their processes as NVML sees them.

NVML numbers devices by PCI address, and so does gpusnap; CUDA puts the fastest first unless
``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set. Any question may be unknown to a driver or a board:
its answer then reads None.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pynvml

from gpusnap.types import Device, EccCounts, Health
from gpusnap_nvidia.uses import Use

_Handle: TypeAlias = Any
"""NVML's own name of a device, opaque."""

_Answer: TypeAlias = Any
"""pynvml ships no types."""

_RETIREMENT_CAUSES = (
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
)


class NvmlMissing(Exception):
    """NVML could not be opened; the argument is its own sentence."""


def _ask(function: Callable[..., _Answer], *arguments: object) -> _Answer:
    """What NVML answers, or None where it does not."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


class Nvml:
    """NVML of this machine, initialised for as long as the process lives."""

    def __init__(self) -> None:
        """Open it.

        Raises:
            NvmlMissing: There is no NVML, or it finds no driver.
        """
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlMissing(str(error)) from None

    def driver_version(self) -> str | None:
        """The driver's version, such as 580.159.04."""
        version: str | None = _ask(pynvml.nvmlSystemGetDriverVersion)
        return version

    def devices(self) -> list[Device]:
        """All devices with memory and health."""
        version = self.driver_version()
        return [_device(index, handle, version) for index, handle in enumerate(self._handles())]

    def uses(self) -> list[Use]:
        """All processes on all devices, one entry a pair."""
        return [use for handle in self._handles() for use in _uses(handle)]

    def _handles(self) -> Iterator[_Handle]:
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                yield pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            # A device that is lost has no name, so what the machine holds cannot be told.
            raise NvmlMissing(f"a device does not answer: {error}") from None


def _device(index: int, handle: _Handle, version: str | None) -> Device:
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    mig = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    return Device(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        vendor="NVIDIA",
        model=_ask(pynvml.nvmlDeviceGetName, handle) or "unknown",
        pci=_pci(handle),
        architecture=_architecture(handle),
        memory_total=None if memory is None else memory.total,
        memory_free=None if memory is None else memory.free,
        driver_version=version,
        firmware=_ask(pynvml.nvmlDeviceGetVbiosVersion, handle),
        partitioned=None if mig is None else mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
        persistence_mode=_flag(_ask(pynvml.nvmlDeviceGetPersistenceMode, handle)),
        health=_health(handle),
    )


def _pci(handle: _Handle) -> str | None:
    """The address as the kernel writes it: NVML itself gives the domain eight digits."""
    info = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
    return None if info is None else f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def _architecture(handle: _Handle) -> str | None:
    capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return None if capability is None else f"sm_{capability[0]}{capability[1]}"


def _health(handle: _Handle) -> Health:
    mode = _ask(pynvml.nvmlDeviceGetEccMode, handle)
    rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle) or (None, None, None, None)
    return Health(
        ecc_enabled=None if mode is None else bool(mode[0]),
        ecc=_ecc(handle),
        remapped_rows_corrected=rows[0],
        remapped_rows_uncorrected=rows[1],
        remap_pending=_flag(rows[2]),
        remap_failed=_flag(rows[3]),
        bad_pages=_bad_pages(handle),
        temperature_celsius=_ask(
            pynvml.nvmlDeviceGetTemperatureV, handle, pynvml.NVML_TEMPERATURE_GPU
        ),
    )


def _ecc(handle: _Handle) -> EccCounts:
    def count(error: int, counter: int) -> int | None:
        number: int | None = _ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, error, counter)
        return number

    corrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return EccCounts(
        volatile_corrected=count(corrected, pynvml.NVML_VOLATILE_ECC),
        volatile_uncorrected=count(uncorrected, pynvml.NVML_VOLATILE_ECC),
        aggregate_corrected=count(corrected, pynvml.NVML_AGGREGATE_ECC),
        aggregate_uncorrected=count(uncorrected, pynvml.NVML_AGGREGATE_ECC),
    )


def _bad_pages(handle: _Handle) -> int | None:
    """Retired pages of all causes; boards that remap rows instead do not answer."""
    lists = [_ask(pynvml.nvmlDeviceGetRetiredPages, handle, cause) for cause in _RETIREMENT_CAUSES]
    known = [pages for pages in lists if pages is not None]
    return sum(map(len, known)) if known else None


def _uses(handle: _Handle) -> list[Use]:
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    lists = (
        (pynvml.nvmlDeviceGetGraphicsRunningProcesses, False),
        (pynvml.nvmlDeviceGetComputeRunningProcesses, False),
        (pynvml.nvmlDeviceGetMPSComputeRunningProcesses, True),
    )
    found: dict[int, Use] = {}  # a process that computes and draws stands in two lists
    for function, through_mps in lists:
        for process in _ask(function, handle) or ():
            found[process.pid] = Use(
                pid=process.pid,
                device_uuid=uuid,
                memory=process.usedGpuMemory,
                through_mps=through_mps,
            )
    return list(found.values())
