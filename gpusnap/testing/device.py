"""The client library of the simulated device, for target programs.

::

    device = SimulatedDevice.open()
    buffer = device.allocate(1 << 20)
    buffer.copy_in(b"some bytes")
    device.launch(kernel, buffer)        # kernel(memory) gets a writable memoryview
    data = buffer.copy_out()

Device memory lies outside the program's own memory and is mapped only while a kernel runs.
Every call waits while the process is locked or checkpointed, as calls of CUDA do.
"""

import atexit
import contextlib
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TypeVar

from gpusnap.errors import UsageError
from gpusnap.testing.agent import start_agent
from gpusnap.testing.context import Context
from gpusnap.testing.errors import (
    DeviceLostError,
    OutOfMemoryError,
    SimulatedDeviceError,
)
from gpusnap.testing.machine import Machine, current_machine

__all__ = [
    "Buffer",
    "DeviceLostError",
    "OutOfMemoryError",
    "SimulatedDevice",
    "SimulatedDeviceError",
]

T = TypeVar("T")

_contexts: dict[Path, Context] = {}
_contexts_lock = threading.Lock()


def _context(machine: Machine, *, keep_in_children: bool) -> Context:
    with _contexts_lock:
        if machine.path not in _contexts:
            context = Context(machine, keep_in_children=keep_in_children)
            atexit.register(context.close)
            start_agent(context)
            _contexts[machine.path] = context
        return _contexts[machine.path]


def _disown_in_child() -> None:
    global _contexts_lock  # noqa: PLW0603 - another thread may have held it at the fork
    _contexts_lock = threading.Lock()
    for context in _contexts.values():
        context.disown()


os.register_at_fork(after_in_child=_disown_in_child)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("r+b", buffering=0) as file:
            return mmap.mmap(file.fileno(), 0)
    except FileNotFoundError:
        msg = f"The device memory of process {os.getpid()} is lost"
        raise DeviceLostError(msg) from None


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """Device memory as writable bytes; all views of it must be gone at the end."""
    memory = _map(path)
    view = memoryview(memory)
    try:
        yield view
    except BaseException:
        # The traceback may hold views of its own; the kernel's error is the one that matters.
        with contextlib.suppress(BufferError):
            _unmap(memory, view)
        raise
    try:
        _unmap(memory, view)
    except BufferError:
        msg = "The kernel kept a view of device memory, which would outlive a checkpoint"
        raise SimulatedDeviceError(msg) from None


def _unmap(memory: mmap.mmap, view: memoryview) -> None:
    view.release()
    memory.close()


class Buffer:
    """Device memory of a fixed size in bytes."""

    def __init__(self, device: "SimulatedDevice", number: int, size: int) -> None:
        self._device = device
        self._number = number
        self.size = size

    @property
    def path(self) -> Path:
        """The file that is this memory while the process runs."""
        context = self._device.context
        if self._number not in context.allocations:
            msg = "This device memory was given back"
            raise UsageError(msg)
        return context.memory_file(context.allocations[self._number])

    def copy_in(self, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copy bytes from host memory to the device."""
        _check_range(offset, len(data), self.size)
        self._device.launch(lambda memory: _write(memory, offset, data), self)

    def copy_out(self, offset: int = 0, size: int | None = None) -> bytes:
        """Copy bytes from the device to host memory; all from the offset by default."""
        size = self.size - offset if size is None else size
        _check_range(offset, size, self.size)
        return self._device.launch(lambda memory: bytes(memory[offset : offset + size]), self)

    def free(self) -> None:
        """Give the memory back to the device."""
        self._device.context.free(self._number)


def _check_range(offset: int, size: int, whole: int) -> None:
    if offset < 0 or size < 0 or offset + size > whole:
        msg = f"Bytes {offset} to {offset + size} are outside device memory of {whole} bytes"
        raise UsageError(msg)


def _write(memory: memoryview, offset: int, data: bytes | bytearray | memoryview) -> None:
    memory[offset : offset + len(data)] = data


class SimulatedDevice:
    """One device of the simulated machine, opened by this process."""

    def __init__(self, context: Context, index: int) -> None:
        self.context = context
        self.index = index

    @classmethod
    def open(
        cls, index: int = 0, *, machine: Machine | None = None, keep_in_children: bool = False
    ) -> Self:
        """Open a device.

        Args:
            index: Its position in the machine, from 0.
            machine: The machine; the one GPUSNAP_SIM_DIR names by default.
            keep_in_children: Forked children keep what CRIU refuses, as children of CUDA
                programs keep the device's descriptors. First open of a machine decides.

        Raises:
            NoBackendError: There is no simulated machine.
            SimulatedDeviceError: The machine has no such device.
        """
        context = _context(machine or current_machine(), keep_in_children=keep_in_children)
        context.open_device(index)
        return cls(context, index)

    @property
    def uuid(self) -> str:
        """UUID of the device, another one after a restore onto another device."""
        return self.context.devices[self.index]

    @property
    def memory_free(self) -> int:
        """Bytes left on the device."""
        return self.context.machine.free(self.uuid)

    def allocate(self, size: int) -> Buffer:
        """Take device memory, filled with zeros.

        Args:
            size: Bytes, at least 1.

        Raises:
            OutOfMemoryError: The device has less left.
            DeviceLostError: This process has lost its device state.
        """
        if size <= 0:
            msg = f"Device memory of {size} bytes cannot be allocated"
            raise UsageError(msg)
        return Buffer(self, self.context.allocate(self.index, size), size)

    def launch(self, kernel: Callable[..., T], *buffers: Buffer) -> T:
        """Run a kernel on device memory, and wait for its end.

        Args:
            kernel: Called with one writable memoryview a buffer; it must keep none.
            *buffers: The memory it works on.

        Returns:
            What the kernel returned.

        Raises:
            DeviceLostError: This process has lost its device state.
        """
        with self.context.work(), contextlib.ExitStack() as mapped:
            views = [mapped.enter_context(_mapped(buffer.path)) for buffer in buffers]
            return kernel(*views)
