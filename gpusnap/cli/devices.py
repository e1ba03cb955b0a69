"""``gpusnap devices``: the devices of this machine and their health."""

from collections.abc import Iterable, Iterator

import click

from gpusnap.checks import devices as read_devices
from gpusnap.cli._format import count, listed, size
from gpusnap.cli._messages import DeviceList
from gpusnap.cli._options import backend_option, json_option
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK, NotFoundError
from gpusnap.plugins import default_plugins
from gpusnap.types import Device, Health

_COLUMNS = (
    ">INDEX",
    "VENDOR",
    "MODEL",
    "ARCH",
    "PCI",
    ">FREE",
    ">MEMORY",
    ">TEMP",
    "HEALTH",
    "UUID",
)


@click.command()
@click.argument("wanted", metavar="[DEVICE]...", nargs=-1)
@backend_option
@json_option
def devices(wanted: tuple[str, ...], backend: str | None, output: Output) -> int:
    """List the devices of this machine and their health.

    DEVICE is an index, a UUID or a PCI address; without one, all are listed.
    """
    found = read_devices(backend=backend)
    chosen = _choose(found, wanted) if wanted else found
    if output.json:
        output.document(DeviceList(devices=chosen))
    elif chosen:
        output.table(_COLUMNS, map(_row, chosen))
        for note in _notes(chosen):
            output.note(note)
    else:
        output.note("No usable backend has a device here; gpusnap backends says why")
    return EXIT_OK


def _choose(found: Iterable[Device], wanted: tuple[str, ...]) -> tuple[Device, ...]:
    present = tuple(found)
    unknown = [name for name in wanted if not any(_is(device, name) for device in present)]
    if unknown:
        raise NotFoundError(
            f"There is no device {listed(unknown)} among {count(len(present), 'device')}",
            cure="gpusnap devices shows what there is",
        )
    return tuple(device for device in present if any(_is(device, name) for name in wanted))


def _is(device: Device, name: str) -> bool:
    return name in {str(device.index), device.uuid, device.pci}


def _notes(shown: Iterable[Device]) -> Iterator[str]:
    vendors = {device.vendor for device in shown}
    for backend in default_plugins().backends():
        if backend.info.note and backend.info.vendor in vendors:
            yield f"{backend.name}: {backend.info.note}"


def health_words(health: Health) -> str:
    """What a person should know of a device's health; ``-`` where nothing is known."""
    faults = [
        (health.ecc.volatile_uncorrected, "uncorrected memory errors since boot"),
        (health.ecc.aggregate_uncorrected, "uncorrected memory errors in all"),
        (health.remapped_rows_uncorrected, "rows remapped after errors"),
        (health.remap_pending, "remap pending"),
        (health.remap_failed, "remap failed"),
        (health.bad_pages, "bad pages"),
    ]
    if all(value is None for value, _ in faults):
        return "-"
    words = [text if value is True else f"{value} {text}" for value, text in faults if value]
    return listed(words) if words else "ok"


def _row(device: Device) -> tuple[str, ...]:
    temperature = device.health.temperature_celsius
    split = " (partitioned)" if device.partitioned else ""
    return (
        str(device.index),
        device.vendor,
        f"{device.model}{split}",
        device.architecture or "-",
        device.pci or "-",
        size(device.memory_free),
        size(device.memory_total),
        "-" if temperature is None else f"{temperature} C",
        health_words(device.health),
        device.uuid,
    )
