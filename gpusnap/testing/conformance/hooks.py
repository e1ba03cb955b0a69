"""Asks the hooks of one backend as the host does, but lets every exception through."""

from typing import TypeVar, cast

import pluggy

from gpusnap.hookspecs import BackendSpec, States
from gpusnap.testing.conformance.programs import require
from gpusnap.types import (
    BackendInfo,
    Capability,
    Claim,
    Compatibility,
    Device,
    DeviceImage,
    DeviceMap,
    DeviceProcess,
    Finding,
    Incompatible,
    Operation,
    Probe,
    Target,
)

T = TypeVar("T")


def ignore_progress(done: int, total: int) -> None:
    """A progress callback for those who do not watch."""


class Hooks:
    """One backend's hooks, each answer checked for its type."""

    def __init__(self, backend: object) -> None:
        self.manager = pluggy.PluginManager("gpusnap")
        self.manager.add_hookspecs(BackendSpec)
        self.manager.register(backend, "under-test")

    def ask(self, hook: str, kind: type[T] | tuple[type[T], ...], /, **arguments: object) -> T:
        """Call one hook by its name without the prefix."""
        answer = getattr(self.manager.hook, f"gpusnap_{hook}")(**arguments)
        require(answer is not None, f"{hook} returned None, which counts as not implemented")
        require(isinstance(answer, kind), f"{hook} returned {type(answer).__name__}")
        return cast("T", answer)

    def ask_all(self, hook: str, kind: type[T], /, **arguments: object) -> tuple[T, ...]:
        """Call a hook that answers with a tuple of structs."""
        answer = self.ask(hook, tuple, **arguments)
        odd = [type(each).__name__ for each in answer if not isinstance(each, kind)]
        require(not odd, f"{hook} returned a tuple with {odd}")
        return cast("tuple[T, ...]", answer)

    def info(self) -> BackendInfo:
        """``gpusnap_backend_info``."""
        return self.ask("backend_info", BackendInfo)

    def offers(self, capability: Capability) -> bool:
        """True where the backend declares a capability."""
        return capability in self.info().capabilities

    def probe(self) -> Probe:
        """``gpusnap_probe``."""
        return self.ask("probe", Probe)

    def devices(self) -> tuple[Device, ...]:
        """``gpusnap_devices``."""
        return self.ask_all("devices", Device)

    def processes(self) -> tuple[DeviceProcess, ...]:
        """``gpusnap_processes``."""
        return self.ask_all("processes", DeviceProcess)

    def claim(self, target: Target) -> Claim:
        """``gpusnap_claim``."""
        return self.ask("claim", Claim, target=target)

    def preflight(
        self, target: Target, pids: tuple[int, ...], operation: Operation
    ) -> tuple[Finding, ...]:
        """``gpusnap_preflight``."""
        return self.ask_all("preflight", Finding, target=target, pids=pids, operation=operation)

    def lock(self, pids: tuple[int, ...], timeout_us: int) -> States:
        """``gpusnap_lock``."""
        return self.ask("lock", dict, pids=pids, timeout_us=timeout_us)

    def checkpoint(self, pids: tuple[int, ...]) -> DeviceImage:
        """``gpusnap_checkpoint``."""
        return self.ask("checkpoint", DeviceImage, pids=pids, progress=ignore_progress)

    def restore(self, pids: tuple[int, ...], device_map: DeviceMap = DeviceMap()) -> States:  # noqa: B008 - frozen
        """``gpusnap_restore``."""
        return self.ask("restore", dict, pids=pids, device_map=device_map, progress=ignore_progress)

    def unlock(self, pids: tuple[int, ...]) -> States:
        """``gpusnap_unlock``."""
        return self.ask("unlock", dict, pids=pids)

    def state(self, pids: tuple[int, ...]) -> States:
        """``gpusnap_state``."""
        return self.ask("state", dict, pids=pids)

    def compatible(self, saved: tuple[Device, ...], devices: tuple[Device, ...]) -> Compatibility:
        """``gpusnap_compatible``."""
        kinds: tuple[type[Compatibility], ...] = (DeviceMap, Incompatible)
        return self.ask("compatible", kinds, saved=saved, devices=devices)
