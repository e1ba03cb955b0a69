"""Asks the Python package pyrsmi, for the one value that sysfs may lack and it tells reliably.

Its ``smi_get_device_unique_id`` is no unique id but the bus address, and
``smi_get_device_compute_process`` never works (version 1.1.0).
"""

from types import ModuleType

from gpusnap_amd.readings import Reading, count


def open_pyrsmi(pyrsmi: ModuleType) -> None:
    """Initialise it; raises whatever it raises without its library or without the driver."""
    pyrsmi.smi_initialize()


def read_pyrsmi(pyrsmi: ModuleType) -> tuple[Reading, ...]:
    """Ask for every GPU it lists."""
    numbers = range(pyrsmi.smi_get_device_count())
    return tuple(reading for number in numbers if (reading := _read(pyrsmi, number)))


def _read(pyrsmi: ModuleType, number: int) -> Reading | None:
    address = count(pyrsmi.smi_get_device_pci_id(number))
    if address is None:
        return None
    # The domain stands at bit 16 or at bit 32, as the library beneath has it.
    pci = f"{address >> 8 & 0xFF:02x}:{address >> 3 & 0x1F:02x}.{address & 7}"
    return Reading(pci=pci, memory_used=count(pyrsmi.smi_get_device_memory_used(number)))
