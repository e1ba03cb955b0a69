"""The hooks of the AMD backend."""

import os
from pathlib import Path
from typing import NoReturn

from gpusnap.errors import NoBackendError
from gpusnap.hookspecs import Progress, States, hookimpl
from gpusnap.types import (
    BackendInfo,
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
    Severity,
    Target,
)
from gpusnap_amd.devices import driver_version, list_devices
from gpusnap_amd.processes import claim, list_processes
from gpusnap_amd.topology import Topology, read_topology

_NO_KFD = "KFD shows no topology: the amdgpu driver is not loaded"
_NO_GPU = "KFD's topology holds no GPU"
_CURE = "Let the program save and reload its own state"


class AmdBackend:
    """Lists AMD GPUs and their processes; claims such processes so that they are refused.

    Args:
        root: What to read in place of ``/sys``; by default the environment variable
            ``GPUSNAP_SYSFS``, then ``/sys``.
        proc: What to read in place of ``/proc``.
    """

    def __init__(self, root: Path | None = None, proc: Path = Path("/proc")) -> None:
        self._root = root
        self._proc = proc

    @property
    def _sysfs(self) -> Path:
        return self._root or Path(os.environ.get("GPUSNAP_SYSFS") or "/sys")

    def _topology(self) -> Topology:
        topology = read_topology(self._sysfs)
        if topology is None:
            raise NoBackendError(_NO_KFD)
        return topology

    @hookimpl
    def gpusnap_backend_info(self) -> BackendInfo:
        """Say that it lists devices and has no capability yet."""
        return BackendInfo(
            name="amd",
            vendor="AMD",
            capabilities=frozenset(),
            note=(
                "Lists devices and processes, cannot checkpoint yet; developed against invented "
                "topologies, not yet run on AMD hardware"
            ),
        )

    @hookimpl
    def gpusnap_probe(self) -> Probe:
        """Usable where KFD has a GPU, also a hidden one, whose processes are to be refused."""
        topology = read_topology(self._sysfs)
        if topology is None:
            return Probe(usable=False, reasons=(_NO_KFD,))
        usable = bool(topology.gpus or topology.skipped)
        return Probe(
            usable=usable,
            reasons=topology.skipped if usable else (_NO_GPU,),
            driver_version=driver_version(self._sysfs),
        )

    @hookimpl
    def gpusnap_devices(self) -> tuple[Device, ...]:
        """List GPUs, or partitions of them, in the order of KFD's nodes."""
        return list_devices(self._sysfs, self._topology())

    @hookimpl
    def gpusnap_processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes that hold video memory."""
        topology = self._topology()
        devices = list_devices(self._sysfs, topology)
        return list_processes(self._sysfs, self._proc, topology, devices)

    @hookimpl
    def gpusnap_claim(self, target: Target) -> Claim:
        """Claim what has state in KFD, for a dump without that state would be worthless."""
        return claim(self._sysfs, self._proc, target)

    @hookimpl
    def gpusnap_preflight(
        self, target: Target, pids: tuple[int, ...], operation: Operation
    ) -> tuple[Finding, ...]:
        """Refuse every claimed process."""
        names = {process.pid: process.name for process in target.processes}
        return tuple(
            Finding(
                code="checkpoint-not-offered",
                severity=Severity.ERROR,
                text=(
                    f"Process {pid} ({names.get(pid, 'unnamed')}) holds state in an AMD GPU, and "
                    f"the AMD backend cannot {operation.value} it yet"
                ),
                cure=_CURE,
                pid=pid,
            )
            for pid in pids
        )

    @hookimpl
    def gpusnap_lock(self, pids: tuple[int, ...], timeout_us: int) -> States:
        """Refuse."""
        _refuse()

    @hookimpl
    def gpusnap_checkpoint(self, pids: tuple[int, ...], progress: Progress) -> DeviceImage:
        """Refuse."""
        _refuse()

    @hookimpl
    def gpusnap_restore(
        self, pids: tuple[int, ...], device_map: DeviceMap, progress: Progress
    ) -> States:
        """Refuse."""
        _refuse()

    @hookimpl
    def gpusnap_unlock(self, pids: tuple[int, ...]) -> States:
        """Refuse."""
        _refuse()

    @hookimpl
    def gpusnap_state(self, pids: tuple[int, ...]) -> States:
        """Refuse."""
        _refuse()

    @hookimpl
    def gpusnap_compatible(
        self, saved: tuple[Device, ...], devices: tuple[Device, ...]
    ) -> Compatibility:
        """Refuse."""
        _refuse()

    @hookimpl
    def gpusnap_criu_options(self, phase: CriuPhase, engine: Engine) -> CriuOptions:
        """Refuse."""
        _refuse()

    @hookimpl
    def gpusnap_verify_images(self, directory: str) -> tuple[Finding, ...]:
        """Refuse."""
        _refuse()


def _refuse() -> NoReturn:
    raise NoBackendError("The AMD backend cannot checkpoint processes yet", cure=_CURE)
