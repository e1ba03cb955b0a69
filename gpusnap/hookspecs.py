"""The backend interface: every hook a device vendor implements.

A backend is one object, registered under the entry-point group ``gpusnap.backends``, whose
methods carry these names and the marker :data:`hookimpl`. A backend must implement every hook
of :class:`BackendSpec` (``gpusnap backends`` names the missing ones); any plugin, also one of
the group ``gpusnap.plugins``, may implement the hooks of :class:`PluginSpec`.

The host asks one backend at a time and never asks for what its :class:`Capability` set lacks.
Hooks report expected trouble by raising a :class:`gpusnap.errors.GpusnapError`; whatever else
they raise becomes a :class:`gpusnap.errors.PluginError` that names backend and hook. A hook
that returns None counts as not implemented.

Calls into a driver may never return. A backend therefore makes them in a worker process
(:class:`gpusnap.worker.Worker`) under a deadline, and after a call whose answer it did not get
it reads the outcome back by :meth:`BackendSpec.gpusnap_state`: it never assumes one.
"""

from collections.abc import Callable
from typing import TypeAlias

import pluggy

from gpusnap.events import Event
from gpusnap.types import (
    BackendInfo,
    BulkImage,
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
    Operation,
    Probe,
    SavedBuffers,
    Target,
)

hookspec = pluggy.HookspecMarker("gpusnap")
hookimpl = pluggy.HookimplMarker("gpusnap")

States: TypeAlias = dict[int, DeviceState]
"""PID to the state of that process in the driver."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes done and bytes in all; a total of 0 means unknown."""


class BackendSpec:
    """Hooks that a backend implements, all of them."""

    @hookspec(firstresult=True)
    def gpusnap_backend_info(self) -> BackendInfo:
        """Say who the backend is and what it can do.

        When: on loading, and for every listing. It touches no driver and never fails.

        Returns:
            Name, vendor, interface version and capabilities.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_probe(self) -> Probe:
        """Say whether the backend can work on this machine.

        When: before a backend is chosen, and for ``gpusnap backends``. It never raises: a
        driver that is absent, too old or broken is a reason in the answer.

        Returns:
            Usable or not, the reasons in sentences, the driver's version.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_devices(self) -> tuple[Device, ...]:
        """List the devices in the driver's order, with memory and health.

        When: for ``gpusnap devices``, into every manifest, and before every restore. Only
        called after a probe that said usable.

        Returns:
            One struct a device; what the driver does not report is None.

        Raises:
            NoBackendError: The driver went away since the probe.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes that use the devices.

        When: for ``gpusnap ps`` and to account device memory to processes.

        Returns:
            One struct for each pair of process and device.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_claim(self, target: Target) -> Claim:
        """Name the processes of a target that hold state in this backend's devices.

        When: at the start of every operation on a target; each usable backend is asked. A
        process that merely inherited device descriptors holds no state and is not claimed.

        Args:
            target: The process tree, root first.

        Returns:
            The claimed PIDs, possibly none, and the reason in a sentence.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_preflight(
        self, target: Target, pids: tuple[int, ...], operation: Operation
    ) -> tuple[Finding, ...]:
        """Look for what would make the operation fail, changing nothing.

        When: before an operation, and for ``gpusnap check PID``.

        Args:
            target: The whole tree.
            pids: The claimed PIDs of the tree.
            operation: What is about to happen.

        Returns:
            Findings; one of severity error refuses the operation.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_lock(self, pids: tuple[int, ...], timeout_us: int) -> States:
        """Stop device work of all given processes: running to locked, all or nothing.

        Processes that are locked already stay so.

        When: first step of a checkpoint or a suspend.

        Args:
            pids: The claimed processes, to be locked concurrently.
            timeout_us: How long the driver may wait for work under way.

        Returns:
            The state of every PID: all locked.

        Raises:
            DeadlineError: Work was still under way after the timeout; all run again.
            DeviceError: The driver refused; all run again.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_checkpoint(self, pids: tuple[int, ...], progress: Progress) -> DeviceImage:
        """Move device state into new private mappings of each process: locked to checkpointed.

        When: after lock. The devices are free of the processes afterwards.

        Args:
            pids: The locked processes, to be checkpointed concurrently.
            progress: Called as bytes move, if the driver tells.

        Returns:
            The regions that now hold device memory, and what each process had held.

        Raises:
            DeviceError: The driver refused one; the host will restore or unlock each by state.
            DeadlineError: The driver did not answer; the host reads the states.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_restore(
        self, pids: tuple[int, ...], device_map: DeviceMap, progress: Progress
    ) -> States:
        """Move device state back onto devices: checkpointed to locked.

        When: after a checkpoint of a target that is to run on, after CRIU restored a tree, in
        every rollback, and for a resume. PIDs that are not checkpointed are left as they are.

        Args:
            pids: The checkpointed processes, to be restored concurrently.
            device_map: Which device replaces which; no pairs means the same devices.
            progress: Called as bytes move, if the driver tells.

        Returns:
            The state of every PID: all locked or running.

        Raises:
            DeviceError: The driver refused one.
            DeadlineError: The driver did not answer.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_unlock(self, pids: tuple[int, ...]) -> States:
        """Let device work go on: locked to running. Idempotent: it is also the rollback.

        When: last step of every operation that leaves the target running.

        Args:
            pids: Processes that are locked, or already running.

        Returns:
            The state of every PID: all running.

        Raises:
            DeviceError: The driver refused one.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_state(self, pids: tuple[int, ...]) -> States:
        """Read the state of processes from the driver.

        When: at any time, also after a call that failed or never returned.

        Args:
            pids: Processes the backend claimed before.

        Returns:
            The state of every PID that the driver still knows; others are left out.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_compatible(
        self, saved: tuple[Device, ...], devices: tuple[Device, ...]
    ) -> Compatibility:
        """Say whether processes saved on some devices can come back on others.

        When: before every restore; it decides by the structs alone. Where the user chooses
        devices, also for one saved device and one at hand: whether that may replace it.

        Args:
            saved: All devices of the host at the time of the checkpoint, in order, or one.
            devices: All devices of this host, in order, or one.

        Returns:
            A map that covers every saved device, or the findings that name which property of
            which device stands in the way.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_criu_options(self, phase: CriuPhase, engine: Engine) -> CriuOptions:
        """Name what CRIU needs: plugin folder, environment, expected images, its log's meaning.

        When: before CRIU is started for a target with claimed processes.

        Args:
            phase: Dump or restore.
            engine: Who drives the device.

        Returns:
            The options; all empty where CRIU needs nothing.

        Raises:
            NoBackendError: The engine needs a file that is not installed (named, with cure).
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_verify_images(self, directory: str) -> tuple[Finding, ...]:
        """Check that dumped images hold what they claim, by the vendor's own rules.

        When: after a dump and before its publication, and for ``gpusnap verify``.

        Args:
            directory: Folder with CRIU's images.

        Returns:
            Findings; an error voids the dump.
        """
        raise NotImplementedError


class PluginSpec:
    """Hooks that any plugin may implement."""

    @hookspec(firstresult=True)
    def gpusnap_describe_images(self, directory: str) -> tuple[SavedBuffers, ...]:
        """Count the device buffers in the vendor's own images.

        When: for ``gpusnap inspect``, of a snapshot's backend alone. One whose device memory
        lies in CRIU's own images, or in packs, leaves the hook out.

        Args:
            directory: Folder with CRIU's images.

        Returns:
            One struct for each device and kind of buffer.

        Raises:
            IntegrityError: An image is damaged.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_bulk_images(self, directory: str) -> tuple[BulkImage, ...]:
        """Name the images that hold device memory, and where one buffer ends and the next begins.

        They are compressed, deduplicated and stored with the memory that went past CRIU, in place
        of the images, and are there again byte for byte when CRIU restores.

        When: after a dump whose images were verified, unless all is to be left to CRIU. A backend
        whose device memory lies in CRIU's own images, or was moved into host memory, leaves the
        hook out.

        Args:
            directory: Folder with CRIU's images.

        Returns:
            One struct for each such file. Wrong borders within it do no harm but to deduplication.

        Raises:
            IntegrityError: An image is damaged.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def gpusnap_diagnose(self, target: Target, pids: tuple[int, ...]) -> tuple[Finding, ...]:
        """Look into claimed processes with the vendor's debugger, which may stop them for seconds.

        When: for ``gpusnap check PID --rocgdb`` alone. A backend whose vendor's debugger has
        nothing to add leaves the hook out.

        Args:
            target: The whole tree.
            pids: The claimed PIDs of the tree.

        Returns:
            What it saw, and in a warning why it saw nothing; the processes run again.
        """
        raise NotImplementedError

    @hookspec
    def gpusnap_event(self, event: Event) -> None:
        """Learn what is going on: for progress, metrics, audit, notification.

        When: synchronously, at every event of :mod:`gpusnap.events`. A plugin that raises is
        reported once as a warning and does not stop the operation; a GpusnapError is told in its
        own words. Targets stand still during most events: what takes time is kept for
        ``OperationEnded`` and ``OperationFailed``, each the last of an operation in its thread.

        Args:
            event: One of the frozen structs of :mod:`gpusnap.events`.
        """
