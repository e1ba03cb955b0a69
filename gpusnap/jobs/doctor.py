"""Follows the health of a job's devices: what has become worse, and where else the job could go."""

import time
from collections.abc import Callable

import msgspec

from gpusnap.device_map import NO_CHOICE, DeviceChoice
from gpusnap.jobs.health import Fault, Limits, Seen, all_devices, faults, look
from gpusnap.jobs.record import RunOptions
from gpusnap.plugins import Plugins
from gpusnap.types import Device, Health

_LOOK_EVERY_S = 2.0


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the devices has shown.

    Attributes:
        faults: What has become worse on a device of the job since the last look.
        room: Whether there are as many healthy devices of the same model as the job uses.
    """

    faults: tuple[Fault, ...] = ()
    room: bool = False


class Doctor:
    """Compares the devices with how they were when the job began, and at the last look."""

    def __init__(self, options: RunOptions) -> None:
        errors = options.on_ecc
        if options.move_on_fault and errors is None:
            errors = 1
        self.limits = Limits(errors=errors, temperature=options.on_temperature)
        self._moves = options.move_on_fault
        self._backend = options.backend
        self._first: dict[str, Health] = {}
        self._last: dict[str, Health] = {}
        self._known: set[tuple[str, str]] = set()
        self._next = 0.0
        self._choosing = False

    def remember(self, devices: tuple[Device, ...]) -> None:
        """Hear how devices are that were not known before."""
        for device in devices:
            self._first.setdefault(device.uuid, device.health)
            self._last.setdefault(device.uuid, device.health)

    def due(self, now: float) -> bool:
        """Whether the next look is due."""
        return bool(self.limits) and now >= self._next

    def look_again(self) -> None:
        """Have the next look wait for a while."""
        self._next = time.monotonic() + _LOOK_EVERY_S

    def looking(self, pid: int, plugins: Plugins) -> Callable[[], Seen]:
        """The look itself, to be done in a thread."""
        return lambda: look(pid, plugins, self._backend)

    def looked(self, seen: Seen) -> Diagnosis:
        """Hear what a look has shown."""
        self.remember(seen.devices)
        mine = tuple(device for device in seen.devices if device.uuid in seen.used)
        found = faults(mine, self._last, self.limits)
        new = tuple(each for each in found if (each.uuid, each.kind) not in self._known)
        self._known = {(each.uuid, each.kind) for each in found if each.lasts}
        if new:
            self._last.update(seen.health)
        sick = self._sick(seen.devices)
        models = {device.model for device in mine}
        fit = [each for each in seen.devices if each.uuid not in sick and each.model in models]
        return Diagnosis(faults=new, room=len(fit) >= len(mine))

    def _sick(self, devices: tuple[Device, ...]) -> set[str]:
        return {fault.uuid for fault in faults(devices, self._first, self.limits)}

    def choice(self, plugins: Plugins) -> DeviceChoice:
        """The devices on which the job may come back: all, unless it is to avoid sick ones."""
        if not self._moves:
            return NO_CHOICE
        devices = all_devices(plugins)
        sick = self._sick(devices)
        healthy = tuple(device.uuid for device in devices if device.uuid not in sick)
        self._choosing = bool(sick and healthy)
        return DeviceChoice(devices=healthy) if self._choosing else NO_CHOICE

    def give_up_choice(self) -> bool:
        """Let the job come back on any device from now on; False where it could already."""
        given_up, self._choosing = self._choosing, False
        self._moves = self._moves and not given_up
        return given_up
