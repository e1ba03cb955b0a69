"""Moves device state off the devices and back: checkpoint and restore."""

from gpusnap.errors import DeviceError, GpusnapError
from gpusnap.hookspecs import Progress
from gpusnap.target import new_regions, read_maps, read_process
from gpusnap.types import Device, DeviceImage, DeviceMap, DeviceState, DeviceUse, Region
from gpusnap_nvidia.calls import Calls
from gpusnap_nvidia.outcome import failed
from gpusnap_nvidia.uses import Use, memory_of


def checkpoint(calls: Calls, pids: tuple[int, ...], progress: Progress) -> DeviceImage:
    """Checkpoint locked processes, all at once.

    Raises:
        DeviceError: The driver refused one.
        DeadlineError: The driver did not answer.
    """
    uses = calls.uses()
    before = {pid: read_maps(pid) for pid in pids}
    deadline_us = calls.deadlines.moving(memory_of(uses, pids) or _in_use(calls.devices()))
    failures = calls.each("checkpoint", pids, deadline_us)
    if failures:
        raise failed("checkpoint", calls, failures, deadline_us)
    regions = tuple(
        region for pid in pids for region in new_regions(pid, before[pid], read_maps(pid))
    )
    size = sum(region.length for region in regions)
    progress(size, size)  # the driver tells nothing in between
    return DeviceImage(regions=regions, uses=_account(calls, pids, uses, regions))


def _in_use(devices: tuple[Device, ...]) -> int:
    """Memory in use on all devices: more than any process can hold, where NVML names none."""
    return sum((device.memory_total or 0) - (device.memory_free or 0) for device in devices)


def _account(
    calls: Calls, pids: tuple[int, ...], uses: tuple[Use, ...], regions: tuple[Region, ...]
) -> tuple[DeviceUse, ...]:
    """What each process held on each device.

    NVML may not list a process, as in a container with PIDs of its own. Then the regions tell
    how much it was, and where there is one device, they tell where.
    """
    told = [use for use in uses if use.pid in pids and use.memory is not None]
    found = [
        DeviceUse(pid=use.pid, device_uuid=use.device_uuid, memory=use.memory or 0) for use in told
    ]
    unlisted = set(pids) - {use.pid for use in told}
    devices = calls.devices() if unlisted else ()
    if len(devices) == 1:
        found += [_by_regions(pid, devices[0], regions) for pid in sorted(unlisted)]
    return tuple(found)


def _by_regions(pid: int, device: Device, regions: tuple[Region, ...]) -> DeviceUse:
    memory = sum(region.length for region in regions if region.pid == pid)
    return DeviceUse(pid=pid, device_uuid=device.uuid, memory=memory)


def restore(
    calls: Calls, pids: tuple[int, ...], device_map: DeviceMap, progress: Progress
) -> dict[int, DeviceState]:
    """Restore checkpointed processes, all at once; others are left as they are.

    Raises:
        DeviceError: The driver refused one, or does not know it; the others are restored.
        DeadlineError: The driver did not answer.
    """
    states = calls.states(pids)
    waiting = [pid for pid, state in states.items() if state is DeviceState.CHECKPOINTED]
    size = sum(_resident(pid) for pid in waiting)
    deadline_us = calls.deadlines.moving(size)
    # Every device must be named or none (measured): the map covers all of them.
    pairs = [] if device_map.identity else [list(pair) for pair in device_map.pairs]
    failures = calls.each("restore", waiting, deadline_us, pairs=pairs)
    failures.update(_unknown(pids, states))
    if failures:
        raise failed("restore", calls, failures, deadline_us)
    progress(size, size)
    return states | dict.fromkeys(waiting, DeviceState.LOCKED)


def _unknown(pids: tuple[int, ...], states: dict[int, DeviceState]) -> dict[int, GpusnapError]:
    return {
        pid: DeviceError(f"The driver does not know process {pid}", pid=pid)
        for pid in pids
        if pid not in states
    }


def _resident(pid: int) -> int:
    """Host memory of a process: at least what its device state takes."""
    return read_process(pid).resident
