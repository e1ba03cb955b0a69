"""The backend of the toy accelerator, complete."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gpusnap.errors import DeadlineError, DeviceError, GpusnapError, NoBackendError
from gpusnap.hookspecs import Progress, States, hookimpl
from gpusnap.target import new_regions, read_maps
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
    Incompatible,
    Operation,
    Probe,
    Severity,
    Target,
)
from gpusnap.worker import Worker, WorkerDied, WorkerError

from . import accelerator

UUID = "TOY-0"
CALL_TIMEOUT_US = 10_000_000


class ToyBackend:
    """Every hook of the interface; see gpusnap.hookspecs."""

    def __init__(self) -> None:
        self._worker = Worker("gpusnap_toy.driver:Driver")

    @hookimpl
    def gpusnap_backend_info(self) -> BackendInfo:
        return BackendInfo(
            name="toy",
            vendor="Toys",
            capabilities=frozenset({Capability.CHECKPOINT, Capability.SUSPEND}),
        )

    @hookimpl
    def gpusnap_probe(self) -> Probe:
        if accelerator.root() is None:
            return Probe(usable=False, reasons=("TOY_DIR names no folder",))
        return Probe(usable=True, driver_version="1")

    @hookimpl
    def gpusnap_devices(self) -> tuple[Device, ...]:
        if accelerator.root() is None:
            msg = "The toy accelerator went away"
            raise NoBackendError(msg)
        device = Device(
            index=0,
            uuid=UUID,
            vendor="Toys",
            model="Toy 1",
            memory_total=accelerator.MEMORY,
            driver_version="1",
        )
        return (device,)

    @hookimpl
    def gpusnap_processes(self) -> tuple[DeviceProcess, ...]:
        root = accelerator.root()
        pids = [int(folder.name) for folder in root.iterdir()] if root else []
        held = [pid for pid in pids if accelerator.state(root, pid) in {"running", "locked"}]
        return tuple(
            DeviceProcess(pid=pid, device_uuid=UUID, memory=accelerator.MEMORY) for pid in held
        )

    @hookimpl
    def gpusnap_claim(self, target: Target) -> Claim:
        pids = tuple(self.gpusnap_state(target.pids))
        return Claim(pids=pids, reason=f"{len(pids)} of them have a folder in TOY_DIR")

    @hookimpl
    def gpusnap_preflight(
        self, target: Target, pids: tuple[int, ...], operation: Operation
    ) -> tuple[Finding, ...]:
        needed = "checkpointed" if operation is Operation.RESUME else "running"
        return tuple(
            Finding(
                code=f"device-not-{needed}",
                severity=Severity.ERROR,
                text=f"Process {pid} is {state} in the toy's driver",
                pid=pid,
            )
            for pid, state in self.gpusnap_state(pids).items()
            if state != needed
        )

    @hookimpl
    def gpusnap_lock(self, pids: tuple[int, ...], timeout_us: int) -> States:
        try:
            self._move_all(pids, "running", "locked", timeout_us)
        except GpusnapError:  # all or nothing
            self.gpusnap_unlock(tuple(self.gpusnap_state(pids)))
            raise
        return self.gpusnap_state(pids)

    @hookimpl
    def gpusnap_checkpoint(self, pids: tuple[int, ...], progress: Progress) -> DeviceImage:
        before = {pid: read_maps(pid) for pid in pids}
        self._move_all(pids, "locked", "checkpointed", CALL_TIMEOUT_US)
        regions = [new_regions(pid, before[pid], read_maps(pid)) for pid in pids]
        uses = (DeviceUse(pid=pid, device_uuid=UUID, memory=accelerator.MEMORY) for pid in pids)
        return DeviceImage(
            regions=tuple(each for some in regions for each in some), uses=tuple(uses)
        )

    @hookimpl
    def gpusnap_restore(
        self, pids: tuple[int, ...], device_map: DeviceMap, progress: Progress
    ) -> States:
        states = self.gpusnap_state(pids)
        waiting = [pid for pid in pids if states.get(pid) is DeviceState.CHECKPOINTED]
        self._move_all(waiting, "checkpointed", "locked", CALL_TIMEOUT_US)
        return self.gpusnap_state(pids)

    @hookimpl
    def gpusnap_unlock(self, pids: tuple[int, ...]) -> States:
        self._move_all(pids, "locked", "running", CALL_TIMEOUT_US)
        return self.gpusnap_state(pids)

    @hookimpl
    def gpusnap_state(self, pids: tuple[int, ...]) -> States:
        root = accelerator.root()
        states = {pid: accelerator.state(root, pid) for pid in pids}
        return {pid: DeviceState(state) for pid, state in states.items() if state is not None}

    @hookimpl
    def gpusnap_compatible(
        self, saved: tuple[Device, ...], devices: tuple[Device, ...]
    ) -> Compatibility:
        if [_kind(device) for device in saved] == [_kind(device) for device in devices]:
            pairs = zip(saved, devices, strict=True)
            return DeviceMap(pairs=tuple((old.uuid, new.uuid) for old, new in pairs))
        finding = Finding(
            code="device-model",
            severity=Severity.ERROR,
            text=f"The snapshot needs {_list(saved)}, this machine has {_list(devices)}",
        )
        return Incompatible(findings=(finding,))

    @hookimpl
    def gpusnap_criu_options(self, phase: CriuPhase, engine: Engine) -> CriuOptions:
        if engine is Engine.CRIU_PLUGIN:
            msg = "The toy accelerator has no CRIU plugin"
            raise NoBackendError(msg, cure="Use --engine driver")
        return CriuOptions()

    @hookimpl
    def gpusnap_verify_images(self, directory: str) -> tuple[Finding, ...]:
        return ()

    def _move_all(self, pids: Sequence[int], before: str, wanted: str, timeout_us: int) -> None:
        _at_once([partial(self._move, pid, before, wanted, timeout_us) for pid in pids])

    def _move(self, pid: int, before: str, wanted: str, timeout_us: int) -> None:
        deadline_us = timeout_us + CALL_TIMEOUT_US
        root = str(accelerator.root())
        try:
            self._worker.call(
                "move",
                deadline_us=deadline_us,
                root=root,
                pid=pid,
                before=before,
                wanted=wanted,
                timeout_us=timeout_us,
            )
        except WorkerError as error:
            if error.kind == "TimeoutError":
                raise DeadlineError(error.text) from None
            raise DeviceError(error.text, pid=pid) from None
        except WorkerDied as error:
            raise DeviceError(error.text, pid=pid) from None


def _at_once(calls: list[Callable[[], None]]) -> None:
    if not calls:
        return
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    for future in futures:
        future.result()


def _kind(device: Device) -> tuple[str, int | None]:
    return device.model, device.memory_total


def _list(devices: tuple[Device, ...]) -> str:
    parts = (f"{device.model} with {device.memory_total} bytes" for device in devices)
    return ", ".join(parts) or "nothing"


backend = ToyBackend()
