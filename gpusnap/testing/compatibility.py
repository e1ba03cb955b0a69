"""Whether processes saved on some simulated devices can come back on others."""

from collections.abc import Iterator

from gpusnap.types import (
    Compatibility,
    Device,
    DeviceMap,
    Finding,
    Incompatible,
    Severity,
)


def compare_devices(saved: tuple[Device, ...], devices: tuple[Device, ...]) -> Compatibility:
    """Map each saved device to the one that replaces it, or name what stands in the way.

    A device that is still there replaces itself, wherever it is now; the others are matched by
    order. Model and driver version have to be equal, and memory enough.
    """
    if len(saved) != len(devices):
        return Incompatible(findings=(_count(len(saved), len(devices)),))
    pairs = _pair(saved, devices)
    findings = tuple(finding for old, new in pairs for finding in _differences(old, new))
    if findings:
        return Incompatible(findings=findings)
    return DeviceMap(pairs=tuple((old.uuid, new.uuid) for old, new in pairs))


def _count(saved: int, now: int) -> Finding:
    return Finding(
        code="device-count",
        severity=Severity.ERROR,
        text=f"The snapshot was taken with {saved} devices, this machine has {now}",
        cure="Restore on a machine with as many devices",
    )


def _pair(
    saved: tuple[Device, ...], devices: tuple[Device, ...]
) -> tuple[tuple[Device, Device], ...]:
    by_uuid = {device.uuid: device for device in devices}
    known = {device.uuid for device in saved}
    others = iter([device for device in devices if device.uuid not in known])
    return tuple((old, by_uuid.get(old.uuid) or next(others)) for old in saved)


def _differences(old: Device, new: Device) -> Iterator[Finding]:
    where = f"Device {old.index} ({old.uuid})"
    if old.model != new.model:
        yield _error(
            "device-model",
            f"{where} was a {old.model}, device {new.index} is a {new.model}",
            f"Restore on a {old.model}",
        )
    if (new.memory_total or 0) < (old.memory_total or 0):
        yield _error(
            "device-memory",
            f"{where} had {old.memory_total} bytes of memory, "
            f"device {new.index} has {new.memory_total}",
            "Restore on a device with as much memory",
        )
    if old.driver_version != new.driver_version:
        yield _error(
            "driver-version",
            f"{where} ran with driver {old.driver_version}, here it is {new.driver_version}",
            f"Install driver {old.driver_version}",
        )


def _error(code: str, text: str, cure: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, text=text, cure=cure)
