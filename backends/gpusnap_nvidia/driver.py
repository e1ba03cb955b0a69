"""What the worker process runs: calls of CUDA's checkpoint API and of NVML.

Every method takes and returns what JSON can hold. Failures travel as the exceptions of
:mod:`gpusnap_nvidia.libcuda` and :mod:`gpusnap_nvidia.nvml`, whose arguments hold the
driver's own codes; :mod:`gpusnap_nvidia.calls` turns them into sentences on the other side.
"""

import os
import threading
import time
from typing import Any

from gpusnap.types import Device, DeviceState
from gpusnap_nvidia.libcuda import CudaError, FunctionMissing, Libcuda, ffi
from gpusnap_nvidia.nvml import Nvml
from gpusnap_nvidia.uses import Use

_STATES = (
    DeviceState.RUNNING,
    DeviceState.LOCKED,
    DeviceState.CHECKPOINTED,
    DeviceState.FAILED,
    DeviceState.CHECKPOINTING,
    DeviceState.RESTORING,
)
"""By the number of ``CUprocessState``."""


class UnknownState(Exception):
    """The driver named a state that this gpusnap does not know."""


class LockedTooLate(Exception):
    """The driver took so long for a lock that it was given up."""


def uuid_bytes(uuid: str) -> bytes:
    """The 16 bytes of a device's name as NVML writes it, ``GPU-8-4-4-4-12``."""
    return bytes.fromhex(uuid.removeprefix("GPU-").replace("-", ""))


def _open_cuda() -> Libcuda:
    # What gpusnap's own user may see must not hide the devices of the processes.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    cuda = Libcuda()
    missing = cuda.missing()
    if missing:
        raise FunctionMissing(*missing)
    cuda.call("cuInit", 0)
    return cuda


class Driver:
    """The driver of this machine, opened on first use."""

    def __init__(self) -> None:
        self._opening_cuda = threading.Lock()
        self._opening_nvml = threading.Lock()
        self._opened_cuda: Libcuda | None = None
        self._opened_nvml: Nvml | None = None

    @property
    def _cuda(self) -> Libcuda:
        with self._opening_cuda:
            if self._opened_cuda is None:
                self._opened_cuda = _open_cuda()
            return self._opened_cuda

    @property
    def _nvml(self) -> Nvml:
        with self._opening_nvml:
            if self._opened_nvml is None:
                self._opened_nvml = Nvml()
            return self._opened_nvml

    def cuda_version(self) -> int:
        """The CUDA version of the driver: 13000 for 13.0."""
        version: Any = ffi.new("int *")
        self._cuda.call("cuDriverGetVersion", version)
        return int(version[0])

    def state(self, pid: int) -> str:
        """State of one process."""
        state: Any = ffi.new("CUprocessState *")
        self._cuda.call("cuCheckpointProcessGetState", pid, state)
        if state[0] not in range(len(_STATES)):
            raise UnknownState(f"The driver names the unknown state {state[0]} for process {pid}")
        return _STATES[state[0]]

    def with_restore_thread(self, pids: list[int]) -> list[int]:
        """Those of the processes that have a restore thread, which is what makes a CUDA process.

        The state tells less: the driver also has one for processes that merely inherited the
        devices.
        """
        return [pid for pid in pids if self._restore_thread(pid) is not None]

    def _restore_thread(self, pid: int) -> int | None:
        thread: Any = ffi.new("int *")
        try:
            self._cuda.call("cuCheckpointProcessGetRestoreThreadId", pid, thread)
        except CudaError as error:
            if error.function == "cuInit":
                raise
            return None
        return int(thread[0])

    def lock(self, pid: int, timeout_ms: int, until: float) -> None:
        """Stop a process's device work.

        Args:
            pid: The process.
            timeout_ms: How long the driver waits for work under way; 0 would be for ever.
            until: Time of :func:`time.monotonic`, in seconds, from which on nobody waits for the
                answer any more: a lock that comes later is taken back here, for nobody else would.
        """
        arguments: Any = ffi.new("CUcheckpointLockArgs *")
        arguments.timeoutMs = timeout_ms
        self._cuda.call("cuCheckpointProcessLock", pid, arguments)
        if time.monotonic() > until:
            self.unlock(pid)
            raise LockedTooLate(f"The lock of process {pid} came too late and was taken back")

    def checkpoint(self, pid: int) -> None:
        """Move a locked process's device state into its own host memory."""
        arguments = ffi.new("CUcheckpointCheckpointArgs *")
        self._cuda.call("cuCheckpointProcessCheckpoint", pid, arguments)

    def restore(self, pid: int, pairs: list[tuple[str, str]]) -> None:
        """Move it back; ``pairs`` names for every device the one that replaces it."""
        arguments: Any = ffi.new("CUcheckpointRestoreArgs *")
        array: Any = ffi.new("CUcheckpointGpuPair[]", max(1, len(pairs)))
        for entry, (old, new) in zip(array, pairs, strict=False):
            entry.oldUuid.bytes = uuid_bytes(old)
            entry.newUuid.bytes = uuid_bytes(new)
        if pairs:
            arguments.gpuPairs = array
            arguments.gpuPairsCount = len(pairs)
        self._cuda.call("cuCheckpointProcessRestore", pid, arguments)

    def unlock(self, pid: int) -> None:
        """Let a locked process's device work go on."""
        arguments = ffi.new("CUcheckpointUnlockArgs *")
        self._cuda.call("cuCheckpointProcessUnlock", pid, arguments)

    def driver_version(self) -> str | None:
        """The driver's version as NVML tells it, such as 580.159.04."""
        return self._nvml.driver_version()

    def devices(self) -> list[Device]:
        """All devices in NVML's order."""
        return self._nvml.devices()

    def uses(self) -> list[Use]:
        """Which process uses which device."""
        return self._nvml.uses()
