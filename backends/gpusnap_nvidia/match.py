"""Decides whether processes saved on some devices can come back on others.

The driver wants the same chip, enough memory and every device named. Processes also keep what
their driver told them, so the driver must be the very same version. How much memory must be free
is the host's to say, which knows what the processes held; here a GPU with less than the saved one
had does not pass, for a program may count on all of it.
"""

from collections.abc import Iterator

from gpusnap.types import Compatibility, Device, DeviceMap, Finding, Incompatible, Severity


def compatible(saved: tuple[Device, ...], devices: tuple[Device, ...]) -> Compatibility:
    """Map every saved device to one at hand in order, or say what differs."""
    findings = tuple(_differences(saved, devices))
    if findings:
        return Incompatible(findings=findings)
    pairs = zip(saved, devices, strict=True)
    return DeviceMap(pairs=tuple((old.uuid, new.uuid) for old, new in pairs))


def _differences(saved: tuple[Device, ...], devices: tuple[Device, ...]) -> Iterator[Finding]:
    if len(saved) != len(devices):
        text = f"The snapshot was taken with {len(saved)} GPUs, this machine has {len(devices)}"
        yield _error("device-count", text, "Restore on a machine with as many GPUs")
        return
    old, new = ([device.uuid for device in each] for each in (saved, devices))
    if old != new and sorted(old) == sorted(new):
        text = f"The GPUs are in another order: saved {', '.join(old)}; now {', '.join(new)}"
        yield _error("device-order", text, "Put the GPUs back into their old slots")
    for before, now in zip(saved, devices, strict=True):
        yield from _device_differences(before, now)


def _device_differences(saved: Device, device: Device) -> Iterator[Finding]:
    if saved.model != device.model:
        text = f"GPU {device.index} is a {device.model}, the snapshot was taken on a {saved.model}"
        yield _error("device-model", text, f"Restore on a {saved.model}")
    elif saved.architecture != device.architecture and saved.architecture and device.architecture:
        text = (
            f"GPU {device.index} has the compute capability {device.architecture}, the one of the "
            f"snapshot {saved.architecture}"
        )
        yield _error("device-model", text, f"Restore on a GPU of {saved.architecture}")
    if _is_smaller(device, saved):
        text = (
            f"GPU {device.index} has {device.memory_total} bytes of memory, the one of the "
            f"snapshot has {saved.memory_total}"
        )
        yield _error("device-memory", text, "Restore on a GPU with as much memory")
    if saved.driver_version != device.driver_version:
        text = (
            f"The driver has version {device.driver_version}, the snapshot was taken with "
            f"{saved.driver_version}"
        )
        yield _error("driver-version", text, f"Install driver {saved.driver_version}")


def _is_smaller(device: Device, saved: Device) -> bool:
    if device.memory_total is None or saved.memory_total is None:
        return device.memory_total != saved.memory_total
    return device.memory_total < saved.memory_total


def _error(code: str, text: str, cure: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, text=text, cure=cure)
