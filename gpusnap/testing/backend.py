"""The backend plugin of the simulated accelerator.

It behaves as a backend of real hardware has to: driver calls are made by a worker process
under deadlines, outcomes are read back, and what a checkpoint added to a process is found by
comparing its memory maps.
"""

from gpusnap.errors import GpusnapError, NoBackendError
from gpusnap.hookspecs import Progress, States, hookimpl
from gpusnap.target import new_regions, read_maps
from gpusnap.testing.calls import DriverCalls, call_each, raise_first, read_state
from gpusnap.testing.compatibility import compare_devices
from gpusnap.testing.driver import find_registration
from gpusnap.testing.failures import DriverCall
from gpusnap.testing.guard import DEVICE_FILES
from gpusnap.testing.machine import DeviceDescription, Machine, Registration, current_machine
from gpusnap.testing.preflight import check_processes
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
    DeviceState,
    DeviceUse,
    Engine,
    Finding,
    Operation,
    Probe,
    Region,
    Target,
)


class SimulatedBackend:
    """Hooks of the simulated accelerator; see :class:`gpusnap.hookspecs.BackendSpec`."""

    def __init__(self) -> None:
        self._calls = DriverCalls()

    def close(self) -> None:
        """End the worker process; the next driver call starts another."""
        self._calls.close()

    @hookimpl
    def gpusnap_backend_info(self) -> BackendInfo:
        """Say what the simulation can do."""
        return BackendInfo(
            name="simulated",
            vendor="Simulated",
            capabilities=frozenset({Capability.CHECKPOINT, Capability.SUSPEND, Capability.REMAP}),
            note="A simulated accelerator for trying and testing, not hardware",
        )

    @hookimpl
    def gpusnap_probe(self) -> Probe:
        """Usable where the environment names a simulated machine."""
        try:
            machine = current_machine()
            return Probe(usable=True, driver_version=machine.description.driver_version)
        except GpusnapError as error:
            return Probe(usable=False, reasons=(error.text,))

    @hookimpl
    def gpusnap_devices(self) -> tuple[Device, ...]:
        """List the devices of the machine."""
        machine = current_machine()
        described = machine.description.devices
        return tuple(_device(machine, index, each) for index, each in enumerate(described))

    @hookimpl
    def gpusnap_processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes whose memory is on a device now."""
        return tuple(
            DeviceProcess(
                pid=each.owner.pid,
                device_uuid=device_uuid,
                memory=each.memory_on(device_uuid),
                name=each.name,
            )
            for each in current_machine().registrations()
            if each.state is not DeviceState.CHECKPOINTED
            for device_uuid in each.device_uuids
        )

    @hookimpl
    def gpusnap_claim(self, target: Target) -> Claim:
        """Claim the processes that opened a device."""
        machine = current_machine()
        pids = tuple(pid for pid in target.pids if _has_device_state(machine, pid))
        if not pids:
            return Claim(pids=(), reason="No process opened a simulated device")
        listed = ", ".join(map(str, pids))
        return Claim(
            pids=pids, reason=f"Opened a simulated device: {listed}", device_files=DEVICE_FILES
        )

    @hookimpl
    def gpusnap_preflight(
        self, target: Target, pids: tuple[int, ...], operation: Operation
    ) -> tuple[Finding, ...]:
        """Look at states and memory."""
        return tuple(check_processes(current_machine(), pids, operation))

    @hookimpl
    def gpusnap_lock(self, pids: tuple[int, ...], timeout_us: int) -> States:
        """Lock all processes at once; if one fails, unlock all."""
        machine = current_machine()
        waiting = self._outside(machine, pids, DeviceState.LOCKED)
        errors = call_each(
            waiting,
            lambda pid: self._calls.make(machine, pid, DriverCall.LOCK, timeout_us=timeout_us),
        )
        if errors:
            self._unlock_locked(machine, pids)
        raise_first(errors)
        return self.gpusnap_state(pids)

    @hookimpl
    def gpusnap_checkpoint(self, pids: tuple[int, ...], progress: Progress) -> DeviceImage:
        """Checkpoint all processes at once; what is new in their memory are the regions."""
        machine = current_machine()
        uses = tuple(use for pid in pids for use in _uses(find_registration(machine, pid)))
        regions: dict[int, tuple[Region, ...]] = {}

        def checkpoint(pid: int) -> None:
            before = read_maps(pid)
            self._calls.make(machine, pid, DriverCall.CHECKPOINT)
            regions[pid] = new_regions(pid, before, read_maps(pid))

        total = sum(use.memory for use in uses)
        progress(0, total)
        raise_first(call_each(pids, checkpoint))
        progress(total, total)
        return DeviceImage(regions=tuple(each for pid in pids for each in regions[pid]), uses=uses)

    @hookimpl
    def gpusnap_restore(
        self, pids: tuple[int, ...], device_map: DeviceMap, progress: Progress
    ) -> States:
        """Restore all checkpointed processes at once."""
        machine = current_machine()
        states = self.gpusnap_state(pids)
        checkpointed = [pid for pid in pids if states.get(pid) is DeviceState.CHECKPOINTED]
        raise_first(
            call_each(
                checkpointed,
                lambda pid: self._calls.make(
                    machine, pid, DriverCall.RESTORE, pairs=device_map.pairs
                ),
            )
        )
        return self.gpusnap_state(pids)

    @hookimpl
    def gpusnap_unlock(self, pids: tuple[int, ...]) -> States:
        """Unlock all processes that do not run."""
        machine = current_machine()
        waiting = self._outside(machine, pids, DeviceState.RUNNING)
        raise_first(
            call_each(waiting, lambda pid: self._calls.make(machine, pid, DriverCall.UNLOCK))
        )
        return self.gpusnap_state(pids)

    @hookimpl
    def gpusnap_state(self, pids: tuple[int, ...]) -> States:
        """Read the states; processes the driver does not know are left out."""
        machine = current_machine()
        states = {pid: read_state(machine, pid) for pid in pids}
        return {pid: state for pid, state in states.items() if state is not None}

    @hookimpl
    def gpusnap_compatible(
        self, saved: tuple[Device, ...], devices: tuple[Device, ...]
    ) -> Compatibility:
        """Compare count, models, memory and driver."""
        return compare_devices(saved, devices)

    @hookimpl
    def gpusnap_criu_options(self, phase: CriuPhase, engine: Engine) -> CriuOptions:
        """Ask nothing of CRIU; there is no plugin that could drive the device from there."""
        if engine is Engine.CRIU_PLUGIN:
            msg = "The simulated accelerator has no CRIU plugin"
            raise NoBackendError(msg, cure="Use --engine driver")
        return CriuOptions()

    @hookimpl
    def gpusnap_verify_images(self, directory: str) -> tuple[Finding, ...]:
        """Nothing to check: device memory is ordinary memory of the dump."""
        return ()

    def _outside(self, machine: Machine, pids: tuple[int, ...], state: DeviceState) -> list[int]:
        return [pid for pid in pids if read_state(machine, pid) is not state]

    def _unlock_locked(self, machine: Machine, pids: tuple[int, ...]) -> None:
        locked = [pid for pid in pids if read_state(machine, pid) is DeviceState.LOCKED]
        # The error of the lock is the one to tell; the states say what became of this.
        call_each(locked, lambda pid: self._calls.make(machine, pid, DriverCall.UNLOCK))


def _device(machine: Machine, index: int, described: DeviceDescription) -> Device:
    return Device(
        index=index,
        uuid=described.uuid,
        vendor="Simulated",
        model=described.model,
        architecture="simulated",
        memory_total=described.memory,
        memory_free=machine.free(described.uuid),
        driver_version=machine.description.driver_version,
        partitioned=False,
        health=described.health,
    )


def _has_device_state(machine: Machine, pid: int) -> bool:
    # The folder outlives a process that was killed: one that is restored may just register.
    if not machine.process_folder(pid).exists():
        return False
    return find_registration(machine, pid) is not None


def _uses(registration: Registration | None) -> tuple[DeviceUse, ...]:
    if registration is None:
        return ()
    return tuple(
        DeviceUse(
            pid=registration.owner.pid,
            device_uuid=device_uuid,
            memory=registration.memory_on(device_uuid),
        )
        for device_uuid in registration.device_uuids
    )


backend = SimulatedBackend()
