"""What the driver does to a process: lock, checkpoint, restore, unlock."""

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path

from gpusnap.testing.context import Context
from gpusnap.testing.errors import (
    DeviceLostError,
    IllegalStateError,
    NotReadyError,
    OutOfMemoryError,
)
from gpusnap.testing.machine import Allocation
from gpusnap.types import DeviceState


def _require(context: Context, state: DeviceState) -> None:
    if context.state is not state:
        pid = context.owner.pid
        msg = f"Process {pid} is {context.state.value}, it would have to be {state.value}"
        raise IllegalStateError(msg)


@contextlib.contextmanager
def _passing(context: Context, through: DeviceState) -> Iterator[None]:
    """Be in a passing state; a failure brings back the one before."""
    before = context.state
    context.enter(through)
    try:
        yield
    except BaseException:
        context.enter(before)
        raise


def lock(context: Context, timeout_us: int) -> None:
    """Wait for work under way, then let no new work begin.

    Raises:
        NotReadyError: Work is still under way after the timeout; the process runs on.
    """
    _require(context, DeviceState.RUNNING)
    with context.condition:
        context.locking = True
        idle = context.condition.wait_for(lambda: context.active == 0, timeout_us / 1e6)
        context.locking = False
        context.condition.notify_all()
        if idle:
            context.enter(DeviceState.LOCKED)
    if not idle:
        raise not_ready(context, timeout_us)


def not_ready(context: Context, timeout_us: int) -> NotReadyError:
    """The error of a lock that took too long."""
    pid, seconds = context.owner.pid, timeout_us / 1e6
    return NotReadyError(f"Process {pid} still has device work under way after {seconds:g} s")


def unlock(context: Context) -> None:
    """Let work begin again."""
    _require(context, DeviceState.LOCKED)
    context.enter(DeviceState.RUNNING)


def checkpoint(context: Context) -> None:
    """Move device memory into new private anonymous mappings, and free the device.

    Raises:
        OutOfMemoryError: The host has no memory for it; the process stays locked.
        DeviceLostError: The device memory is gone.
    """
    _require(context, DeviceState.LOCKED)
    with _passing(context, DeviceState.CHECKPOINTING):
        saved = {
            number: _copy_out(context.memory_file(allocation), allocation)
            for number, allocation in context.allocations.items()
        }
    context.saved = saved
    for allocation in context.allocations.values():
        context.memory_file(allocation).unlink()
    context.guard.close()
    context.enter(DeviceState.CHECKPOINTED)


def _copy_out(path: Path, allocation: Allocation) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, allocation.size, flags=flags)
    except OSError:
        msg = f"The host has no {allocation.size} bytes for the checkpoint"
        raise OutOfMemoryError(msg) from None
    try:
        _read_into(path, memory)
    except FileNotFoundError:
        msg = f"Device memory {allocation.number} is gone"
        raise DeviceLostError(msg) from None
    return memory


def _read_into(path: Path, memory: mmap.mmap) -> None:
    with path.open("rb", buffering=0) as file, memoryview(memory) as view:
        done = 0
        while count := file.readinto(view[done:]):
            done += count


def restore(context: Context, pairs: dict[str, str]) -> None:
    """Move device memory back onto the devices, or onto those that replace them.

    Raises:
        OutOfMemoryError: A device has no room; the process stays checkpointed.
        SimulatedDeviceError: The machine has no such device.
    """
    _require(context, DeviceState.CHECKPOINTED)
    devices, allocations = context.devices, context.allocations
    context.remap(pairs)
    try:
        with _passing(context, DeviceState.RESTORING):
            context.guard.open()
            _copy_all_in(context)
    except BaseException:
        context.guard.close()
        context.devices, context.allocations = devices, allocations
        context.register()
        raise
    for memory in context.saved.values():
        memory.close()
    context.saved = {}
    context.enter(DeviceState.LOCKED)


def _copy_all_in(context: Context) -> None:
    for device_uuid in context.devices.values():
        context.machine.device(device_uuid)
    try:
        for number, allocation in context.allocations.items():
            path = context.machine.allocate(context.owner, allocation)
            with path.open("r+b") as file, memoryview(context.saved[number]) as view:
                file.write(view)
    except BaseException:
        for allocation in context.allocations.values():
            context.memory_file(allocation).unlink(missing_ok=True)
        raise
