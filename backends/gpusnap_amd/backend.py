"""The hooks of the AMD backend."""

import os
from pathlib import Path
from typing import NoReturn

from gpusnap.errors import NoBackendError
from gpusnap.hookspecs import Progress, States, hookimpl
from gpusnap.types import (
    BackendInfo,
    BulkImage,
    Capability,
    Claim,
    Compatibility,
    CriuOptions,
    CriuPhase,
    Device,
    DeviceImage,
    DeviceMap,
    DeviceProcess,
    DeviceState,
    Engine,
    Finding,
    Lack,
    Operation,
    Probe,
    SavedBuffers,
    Target,
)
from gpusnap_amd.criu_plugin import plugin_options
from gpusnap_amd.devices import driver_version, list_devices
from gpusnap_amd.images_pages import page_files
from gpusnap_amd.images_rules import describe_images, verify_images
from gpusnap_amd.libraries import Libraries, complete
from gpusnap_amd.mapping import compatible
from gpusnap_amd.mapping_topology import add_topology
from gpusnap_amd.preflight import find_obstacles, preflight
from gpusnap_amd.processes import claim, known, list_processes
from gpusnap_amd.rocgdb import diagnose
from gpusnap_amd.topology import Topology, read_topology

_SYS = Path("/sys")
_NO_KFD = "KFD shows no topology: the amdgpu driver is not loaded"
_NO_GPU = "KFD's topology holds no GPU"
_NOTE = (
    "Checkpoints through CRIU's amdgpu plugin; developed against captured topologies and a "
    "simulated KFD, not yet run on AMD hardware"
)
_REASON = (
    "AMD's driver gives a process's device state to nobody but CRIU's amdgpu plugin, in the "
    "middle of a dump"
)
_NO_DRIVER = Lack(reason=_REASON, cure="Leave out --engine driver")
_NO_SUSPEND = Lack(reason=_REASON, cure="Use gpusnap checkpoint --kill and, later, gpusnap restore")


class AmdBackend:
    """Lists AMD GPUs and their processes, and has CRIU's amdgpu plugin save and restore these.

    Args:
        root: What to read in place of ``/sys``; by default the environment variable
            ``GPUSNAP_SYSFS``, then ``/sys``.
        proc: What to read in place of ``/proc``.
        libraries: AMD's own libraries; they know this machine alone, and so are left out by
            default where another folder is read in place of ``/sys``.
    """

    def __init__(
        self,
        root: Path | None = None,
        proc: Path = Path("/proc"),
        libraries: Libraries | None = None,
    ) -> None:
        self._root = root
        self._proc = proc
        self._given = libraries
        self._own = Libraries()

    @property
    def _sysfs(self) -> Path:
        return self._root or Path(os.environ.get("GPUSNAP_SYSFS") or _SYS)

    @property
    def _libraries(self) -> Libraries | None:
        if self._given is None and self._sysfs == _SYS:
            return self._own
        return self._given

    def _topology(self) -> Topology:
        topology = read_topology(self._sysfs)
        if topology is None:
            raise NoBackendError(_NO_KFD)
        return topology

    @hookimpl
    def gpusnap_backend_info(self) -> BackendInfo:
        """Say that everything is done by CRIU's plugin."""
        return BackendInfo(
            name="amd",
            vendor="AMD",
            capabilities=frozenset({Capability.CRIU_PLUGIN}),
            note=_NOTE,
            lacks={Capability.CHECKPOINT: _NO_DRIVER, Capability.SUSPEND: _NO_SUSPEND},
        )

    @hookimpl
    def gpusnap_probe(self) -> Probe:
        """Usable where KFD has a GPU, also a hidden one, whose processes are to be claimed."""
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
        topology = self._topology()
        nodes = [gpu.node for gpu in topology.gpus]
        devices = add_topology(self._sysfs, list_devices(self._sysfs, topology), nodes)
        return complete(devices, self._libraries) if self._libraries else devices

    @hookimpl
    def gpusnap_processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes that hold video memory, or may hold some where KFD cannot tell."""
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
        """Tell what stands in the way, and what is known of the machine."""
        if not pids:
            return ()
        broken = self._libraries.read().failures if self._libraries else ()
        findings = preflight(target, pids, operation, self._topology().skipped, broken)
        if operation is Operation.CHECKPOINT:
            return (*find_obstacles(ask_kfd=self._sysfs == _SYS), *findings)
        return findings

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
        """Do nothing: what cannot be locked runs."""
        return self.gpusnap_state(pids)

    @hookimpl
    def gpusnap_state(self, pids: tuple[int, ...]) -> States:
        """Running, for every process that KFD knows: nothing here can make it otherwise."""
        return dict.fromkeys(known(self._sysfs, self._proc, pids), DeviceState.RUNNING)

    @hookimpl
    def gpusnap_compatible(
        self, saved: tuple[Device, ...], devices: tuple[Device, ...]
    ) -> Compatibility:
        """Compare by the rules of CRIU's amdgpu plugin, and look for a map."""
        return compatible(saved, devices)

    @hookimpl
    def gpusnap_criu_options(self, phase: CriuPhase, engine: Engine) -> CriuOptions:
        """Set up CRIU's amdgpu plugin; without it CRIU can do nothing here."""
        if engine is Engine.DRIVER:
            _refuse()
        return plugin_options(phase)

    @hookimpl
    def gpusnap_verify_images(self, directory: str) -> tuple[Finding, ...]:
        """Check that the images of CRIU's amdgpu plugin hold the memory that they list."""
        return verify_images(Path(directory))

    @hookimpl
    def gpusnap_describe_images(self, directory: str) -> tuple[SavedBuffers, ...]:
        """Count the buffers in the images of CRIU's amdgpu plugin."""
        return describe_images(Path(directory))

    @hookimpl
    def gpusnap_bulk_images(self, directory: str) -> tuple[BulkImage, ...]:
        """Name the page files of CRIU's amdgpu plugin."""
        return page_files(Path(directory))

    @hookimpl
    def gpusnap_diagnose(self, target: Target, pids: tuple[int, ...]) -> tuple[Finding, ...]:
        """Have rocgdb look at each process."""
        return tuple(finding for pid in pids for finding in diagnose(pid))

    def close(self) -> None:
        """End the worker process of the libraries; a later call starts another."""
        if self._libraries:
            self._libraries.close()


def _refuse() -> NoReturn:
    raise NoBackendError(_REASON, cure=_NO_DRIVER.cure)
