"""AMD's own libraries, for what sysfs does not tell; never for what names a device.

Whether a library is installed may change between a checkpoint and its restore. So nothing that
is compared then comes from here: only values that change while a GPU works.
"""

import importlib.util
from collections.abc import Collection

import msgspec

from gpusnap.errors import GpusnapError
from gpusnap.types import Device, EccCounts, Health
from gpusnap.worker import Worker
from gpusnap_amd.loader import NAMES
from gpusnap_amd.readings import Reading, Readings

_ENTRY = "gpusnap_amd.loader:Loader"
_DEADLINE_US = 10_000_000


class Libraries:
    """amdsmi or pyrsmi, in a worker process: what it prints, raises or never ends stays there.

    Args:
        deadline_us: How long it may take to load and to answer, in microseconds.
    """

    def __init__(self, deadline_us: int = _DEADLINE_US) -> None:
        self._deadline_us = deadline_us
        self._worker = Worker(_ENTRY)
        self._given_up: Readings | None = None

    def read(self) -> Readings:
        """Ask; a library that took the worker down or did not answer is not asked again."""
        if self._given_up is not None:
            return self._given_up
        installed = [name for name in NAMES if _is_installed(name)]
        if not installed:
            return Readings()
        try:
            answer = self._worker.call("read", deadline_us=self._deadline_us)
            return msgspec.convert(answer, Readings)
        except GpusnapError as error:
            text = f"{' or '.join(installed)} is installed but does not work ({error.text})"
            self._given_up = Readings(failures=(text,))
            return self._given_up

    def close(self) -> None:
        """End the worker process; a later call starts another."""
        self._worker.close()


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def complete(devices: tuple[Device, ...], libraries: Libraries) -> tuple[Device, ...]:
    """Fill in what sysfs did not tell; without such gaps no library is loaded."""
    if not any(map(_has_gaps, devices)):
        return devices
    gpus = libraries.read().gpus
    return tuple(_completed(device, _find(device, devices, gpus)) for device in devices)


def _has_gaps(device: Device) -> bool:
    health = device.health
    counted = (health.ecc.volatile_corrected, health.ecc.volatile_uncorrected, health.bad_pages)
    return (
        health.temperature_celsius is None
        or (device.memory_free is None and not device.partitioned)
        or (health.ecc_enabled is not False and None in counted)
    )


def _find(device: Device, devices: Collection[Device], gpus: Collection[Reading]) -> Reading | None:
    """The reading of a device's board; None where an address without domain fits two boards."""
    for gpu in gpus:
        boards = {each.pci for each in devices if each.pci and _fits(gpu.pci, each.pci)}
        if boards == {device.pci}:
            return gpu
    return None


def _fits(told: str, pci: str) -> bool:
    return told in {pci, pci.partition(":")[2]}


def _completed(device: Device, gpu: Reading | None) -> Device:
    if gpu is None:
        return device
    free = device.memory_free
    if free is None and not device.partitioned:
        free = _free(device.memory_total, gpu.memory_used)
    health = _health(device.health, gpu)
    return msgspec.structs.replace(device, memory_free=free, health=health)


def _free(total: int | None, used: int | None) -> int | None:
    return None if total is None or used is None or used > total else total - used


def _health(health: Health, gpu: Reading) -> Health:
    ecc = health.ecc
    return msgspec.structs.replace(
        health,
        ecc=EccCounts(
            volatile_corrected=_first(ecc.volatile_corrected, gpu.corrected),
            volatile_uncorrected=_first(ecc.volatile_uncorrected, gpu.uncorrected),
        ),
        bad_pages=_first(health.bad_pages, gpu.bad_pages),
        temperature_celsius=_first(health.temperature_celsius, gpu.temperature_celsius),
    )


def _first(told: int | None, read: int | None) -> int | None:
    return read if told is None else told
