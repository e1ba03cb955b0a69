"""The NVIDIA backend: each hook of the interface, and where its work is done."""

from gpusnap.errors import GpusnapError
from gpusnap.hookspecs import Progress, States, hookimpl
from gpusnap.target import read_process
from gpusnap.types import (
    BackendInfo,
    Capability,
    Claim,
    Compatibility,
    CriuOptions,
    CriuPhase,
    Device,
    DeviceImage,
    DeviceMap,
    DeviceProcess,
    Engine,
    Finding,
    Operation,
    Probe,
    Target,
)
from gpusnap.worker import Worker
from gpusnap_nvidia import lock, match, move
from gpusnap_nvidia.calls import Calls, Deadlines
from gpusnap_nvidia.criu_plugin import plugin_options
from gpusnap_nvidia.preflight import preflight
from gpusnap_nvidia.uses import Use

_ENTRY = "gpusnap_nvidia.driver:Driver"


class NvidiaBackend:
    """CUDA processes, through the driver's checkpoint API."""

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        """Make a backend; no driver is touched before the first call.

        Args:
            deadlines: How long the driver may take, the default for all but tests.
        """
        self.worker = Worker(_ENTRY)
        self._calls = Calls(self.worker, deadlines or Deadlines())

    @hookimpl
    def gpusnap_backend_info(self) -> BackendInfo:
        """Name the backend and what it can do."""
        return BackendInfo(name="nvidia", vendor="NVIDIA", capabilities=frozenset(Capability))

    @hookimpl
    def gpusnap_probe(self) -> Probe:
        """Try CUDA and NVML; what fails is a reason."""
        reasons = []
        version = None
        try:
            version = self._calls.driver_version()
        except GpusnapError as error:
            reasons.append(error.text)
        try:
            self._calls.cuda_version()
        except GpusnapError as error:
            reasons.append(error.text)
        return Probe(usable=not reasons, reasons=tuple(reasons), driver_version=version)

    @hookimpl
    def gpusnap_devices(self) -> tuple[Device, ...]:
        """List the GPUs in NVML's order, which is that of their PCI addresses."""
        return self._calls.devices()

    @hookimpl
    def gpusnap_processes(self) -> tuple[DeviceProcess, ...]:
        """List who computes or draws on the GPUs."""
        return tuple(map(_device_process, self._calls.uses()))

    @hookimpl
    def gpusnap_claim(self, target: Target) -> Claim:
        """Claim the processes that have a CUDA restore thread."""
        pids = self._calls.with_restore_thread(target.pids)
        return Claim(
            pids=pids,
            reason=f"{len(pids)} of {len(target.pids)} processes have a CUDA restore thread",
            device_files=("/dev/nvidia",),
        )

    @hookimpl
    def gpusnap_preflight(
        self, target: Target, pids: tuple[int, ...], operation: Operation
    ) -> tuple[Finding, ...]:
        """Look at the state of the processes, at the GPUs and at host memory."""
        del target  # processes without device state are none of this backend's business
        return preflight(self._calls, pids, operation)

    @hookimpl
    def gpusnap_lock(self, pids: tuple[int, ...], timeout_us: int) -> States:
        """Lock all processes, or none."""
        return lock.lock(self._calls, pids, timeout_us)

    @hookimpl
    def gpusnap_checkpoint(self, pids: tuple[int, ...], progress: Progress) -> DeviceImage:
        """Move device memory of locked processes into their host memory."""
        return move.checkpoint(self._calls, pids, progress)

    @hookimpl
    def gpusnap_restore(
        self, pids: tuple[int, ...], device_map: DeviceMap, progress: Progress
    ) -> States:
        """Move device memory of checkpointed processes back."""
        return move.restore(self._calls, pids, device_map, progress)

    @hookimpl
    def gpusnap_unlock(self, pids: tuple[int, ...]) -> States:
        """Let locked processes go on."""
        return lock.unlock(self._calls, pids)

    @hookimpl
    def gpusnap_state(self, pids: tuple[int, ...]) -> States:
        """Read the states; processes the driver does not know are left out."""
        return self._calls.states(pids, all_living=True)

    @hookimpl
    def gpusnap_compatible(
        self, saved: tuple[Device, ...], devices: tuple[Device, ...]
    ) -> Compatibility:
        """Compare count, order, model, memory and driver."""
        return match.compatible(saved, devices)

    @hookimpl
    def gpusnap_criu_options(self, phase: CriuPhase, engine: Engine) -> CriuOptions:
        """Nothing for the driver engine; the cuda plugin and its tool for the other."""
        del phase  # the plugin is needed for the dump and for the restore
        return plugin_options() if engine is Engine.CRIU_PLUGIN else CriuOptions()

    @hookimpl
    def gpusnap_verify_images(self, directory: str) -> tuple[Finding, ...]:
        """Device memory lies in CRIU's own images: there is nothing of NVIDIA's to check."""
        del directory
        return ()

    def close(self) -> None:
        """End the worker process; a later call starts another."""
        self._calls.close()


def _device_process(use: Use) -> DeviceProcess:
    try:
        name = read_process(use.pid).name
    except GpusnapError:  # gone, or a PID of another namespace
        name = None
    return DeviceProcess(pid=use.pid, device_uuid=use.device_uuid, memory=use.memory, name=name)
