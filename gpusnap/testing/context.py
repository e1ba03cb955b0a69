"""What a target process knows of its own device state: memory, state, work under way."""

import contextlib
import itertools
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpusnap.testing.errors import DeviceLostError, SimulatedDeviceError
from gpusnap.testing.guard import Guard
from gpusnap.testing.identity import own_identity
from gpusnap.testing.machine import Allocation, Machine, Registration
from gpusnap.types import DeviceState


class Context:
    """The device state of this process on one machine.

    Program threads work inside :meth:`work`, the driver thread changes the state; both agree
    through ``condition``. ``saved`` holds the anonymous mappings of a checkpoint.
    """

    def __init__(self, machine: Machine, *, keep_in_children: bool) -> None:
        self.machine = machine
        self.owner = own_identity()
        self.condition = threading.Condition()
        self.state = DeviceState.RUNNING
        self.locking = False
        self.active = 0
        self.devices: dict[int, str] = {}
        self.allocations: dict[int, Allocation] = {}
        self.saved: dict[int, mmap.mmap] = {}
        self.guard = Guard()
        self._keep_in_children = keep_in_children
        self._closed = False
        self._numbers = itertools.count(1)
        self._name = Path("/proc/self/comm").read_text(errors="replace").rstrip("\n")

    @property
    def folder(self) -> Path:
        """Where requests for this process arrive."""
        return self.machine.process_folder(self.owner.pid)

    def memory_file(self, allocation: Allocation) -> Path:
        """The device memory of an allocation, while it is on the device."""
        return self.machine.memory_file(self.owner, allocation)

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Use the device: waits while the process is locked or checkpointed.

        Raises:
            DeviceLostError: The device state of this process is gone.
        """
        with self.condition:
            self.condition.wait_for(self._admits_work)
            self._require_device()
            self.active += 1
        try:
            yield
        finally:
            with self.condition:
                self.active -= 1
                self.condition.notify_all()

    def _admits_work(self) -> bool:
        running = self.state is DeviceState.RUNNING and not self.locking
        return running or self.state is DeviceState.FAILED

    def _require_device(self) -> None:
        if self.state is not DeviceState.FAILED and own_identity() != self.owner:
            self.state = DeviceState.FAILED
        if self.state is DeviceState.FAILED:
            msg = f"The device memory of process {os.getpid()} is lost"
            raise DeviceLostError(msg, cure="Restore a snapshot that holds the device state")

    def open_device(self, index: int) -> None:
        """Begin to use a device.

        Raises:
            SimulatedDeviceError: The machine has no such device.
        """
        devices = self.machine.description.devices
        if not 0 <= index < len(devices):
            msg = f"The simulated machine has {len(devices)} devices, none has index {index}"
            raise SimulatedDeviceError(msg)
        with self.work(), self.condition:
            self.guard.open()
            self.devices.setdefault(index, devices[index].uuid)
            self.register()

    def allocate(self, index: int, size: int) -> int:
        """Take device memory; returns the number of the allocation.

        Raises:
            OutOfMemoryError: The device has less left.
        """
        with self.work(), self.condition:
            allocation = Allocation(
                number=next(self._numbers), device_uuid=self.devices[index], size=size
            )
            self.machine.allocate(self.owner, allocation)
            self.allocations[allocation.number] = allocation
            self.register()
            return allocation.number

    def free(self, number: int) -> None:
        """Give device memory back."""
        with self.work(), self.condition:
            allocation = self.allocations.pop(number)
            self.memory_file(allocation).unlink(missing_ok=True)
            self.register()

    def enter(self, state: DeviceState) -> None:
        """Change the state, for the driver and for the threads that wait."""
        with self.condition:
            self.state = state
            self.condition.notify_all()
            self.register()

    def register(self) -> None:
        """Write down for the driver what this process holds."""
        self.machine.register(
            Registration(
                owner=self.owner,
                name=self._name,
                state=self.state,
                device_uuids=tuple(self.devices.values()),
                allocations=tuple(self.allocations.values()),
            )
        )

    def keep_registered(self) -> None:
        """Register anew where the driver no longer knows this process.

        That is how a restored process becomes known: the driver removes what it knew of the
        dead one. Looking for the file opens no descriptor.
        """
        known = (self.folder / "process.json").exists()
        if known or not self.devices or not self._machine_exists():
            return
        with self.condition:
            if not self._closed:
                self.renew_owner()
                self.register()

    def _machine_exists(self) -> bool:
        return (self.machine.path / "devices.json").exists()

    def renew_owner(self) -> None:
        """Notice that this process was restored, or that its memory was wiped."""
        with self.condition:
            restored = own_identity() != self.owner
            self.owner = own_identity()
            on_device = self.state is not DeviceState.CHECKPOINTED
            if on_device and (restored or not self._memory_exists()):
                self.state = DeviceState.FAILED
                self.condition.notify_all()

    def _memory_exists(self) -> bool:
        return all(self.memory_file(each).exists() for each in self.allocations.values())

    def remap(self, pairs: dict[str, str]) -> None:
        """Put devices in the place of others."""
        self.devices = {index: pairs.get(old, old) for index, old in self.devices.items()}
        self.allocations = {
            number: msgspec.structs.replace(
                each, device_uuid=pairs.get(each.device_uuid, each.device_uuid)
            )
            for number, each in self.allocations.items()
        }

    def disown(self) -> None:
        """In a forked child: nothing of the parent's device state is the child's."""
        self.condition = threading.Condition()
        self.state = DeviceState.FAILED
        if not self._keep_in_children:
            self.guard.close()

    def close(self) -> None:
        """At exit: give everything back. A forked child has nothing to give."""
        with self.condition:
            self._closed = True  # the driver thread still runs, and must not register again
            if own_identity() == self.owner:
                self.machine.release(self.owner)
