"""Asks the Python package amdsmi; its names and answers differ from version to version.

After the ``amdsmi_interface.py`` of version 7.0.2.
"""

from collections.abc import Mapping, Sized
from types import ModuleType
from typing import Any, TypeAlias

from gpusnap_amd.readings import Reading, count

_Handle: TypeAlias = Any
"""amdsmi ships no types."""

_MILLIDEGREES_FROM = 1000
"""Older versions answer in thousandths of a degree, and no GPU is that hot."""


def open_amdsmi(amdsmi: ModuleType) -> None:
    """Initialise it; raises whatever it raises without its library or without the driver."""
    amdsmi.amdsmi_init()


def read_amdsmi(amdsmi: ModuleType) -> tuple[Reading, ...]:
    """Ask for every GPU it lists."""
    handles = amdsmi.amdsmi_get_processor_handles()
    return tuple(reading for handle in handles if (reading := _read(amdsmi, handle)))


def _read(amdsmi: ModuleType, handle: _Handle) -> Reading | None:
    pci = _ask(amdsmi, "amdsmi_get_gpu_device_bdf", handle)
    if not isinstance(pci, str):
        return None
    errors = _ask(amdsmi, "amdsmi_get_gpu_total_ecc_count", handle)
    errors = errors if isinstance(errors, Mapping) else {}
    pages = _ask(amdsmi, "amdsmi_get_gpu_bad_page_info", handle)
    used = _ask(amdsmi, "amdsmi_get_gpu_memory_usage", handle, "AmdSmiMemoryType.VRAM")
    return Reading(
        pci=pci.lower(),
        memory_used=count(used),
        corrected=count(errors.get("correctable_count")),
        uncorrected=count(errors.get("uncorrectable_count")),
        bad_pages=len(pages) if isinstance(pages, Sized) and not isinstance(pages, str) else None,
        temperature_celsius=_temperature(amdsmi, handle),
    )


def _temperature(amdsmi: ModuleType, handle: _Handle) -> int | None:
    """Of the edge sensor, or of the junction where there is no edge sensor."""
    for sensor in ("EDGE", "JUNCTION"):
        names = (f"AmdSmiTemperatureType.{sensor}", "AmdSmiTemperatureMetric.CURRENT")
        value = count(_ask(amdsmi, "amdsmi_get_temp_metric", handle, *names))
        if value is not None:
            return value if value < _MILLIDEGREES_FROM else round(value / 1000)
    return None


def _ask(amdsmi: ModuleType, function: str, handle: _Handle, *members: str) -> object:
    """Call a function with a handle and members of its enums; None where that fails."""
    try:
        return getattr(amdsmi, function)(handle, *(_member(amdsmi, name) for name in members))
    except Exception:  # noqa: BLE001 - each version raises something else
        return None


def _member(amdsmi: ModuleType, name: str) -> object:
    enum, _, member = name.partition(".")
    return getattr(getattr(amdsmi, enum), member)
