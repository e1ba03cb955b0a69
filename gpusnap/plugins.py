"""Finds plugins, keeps broken ones from doing harm, and gives backends a typed face."""

import functools
import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVar, cast

import msgspec
import pluggy

from gpusnap.errors import GpusnapError, NoBackendError, PluginError, UsageError
from gpusnap.events import Event, Found
from gpusnap.hookspecs import BackendSpec, PluginSpec, Progress, States
from gpusnap.types import (
    BACKEND_API_VERSION,
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
    Engine,
    Finding,
    Operation,
    Probe,
    SavedBuffers,
    Severity,
    Target,
)

BACKEND_GROUP = "gpusnap.backends"
PLUGIN_GROUP = "gpusnap.plugins"

T = TypeVar("T")

_BACKEND_HOOKS = tuple(
    name for name, _ in inspect.getmembers(BackendSpec, inspect.isfunction) if name[0] != "_"
)


class BrokenPlugin(msgspec.Struct, frozen=True):
    """A plugin that could not be used, and why."""

    name: str
    reason: str


def _no_progress(_done: int, _total: int) -> None:
    """For callers that do not watch."""


def _caller(manager: pluggy.PluginManager, hook: str, plugin: object) -> pluggy.HookCaller:
    """The hook of one plugin alone: a broadcast would ask whoever registered last."""
    others = [other for other in manager.get_plugins() if other is not plugin]
    return manager.subset_hook_caller(hook, others)


class Backend:
    """One backend, its hooks as typed methods (documented in :mod:`gpusnap.hookspecs`)."""

    def __init__(self, name: str, manager: pluggy.PluginManager, plugin: object) -> None:
        self.name = name
        self._manager = manager
        self._plugin = plugin
        self.info: BackendInfo = self._call("backend_info", BackendInfo)

    def _call(self, hook: str, kind: type[T], /, **arguments: object) -> T:
        try:
            result = _caller(self._manager, f"gpusnap_{hook}", self._plugin)(**arguments)
        except GpusnapError:
            raise
        except Exception as error:
            msg = f"Backend {self.name} failed in {hook}: {type(error).__name__}: {error}"
            raise PluginError(msg, cure=_REPORT) from error
        if not isinstance(result, kind):
            msg = f"Backend {self.name} answered {hook} with {type(result).__name__}"
            raise PluginError(msg, cure=_REPORT)
        return result

    def offers(self, capability: Capability) -> bool:
        """True where the backend declares a capability."""
        return capability in self.info.capabilities

    def require(self, capability: Capability) -> None:
        """Raise NoBackendError where the backend does not declare a capability."""
        if self.offers(capability):
            return
        msg = f"Backend {self.name} does not offer {capability.value}"
        if lack := self.info.lacks.get(capability):
            raise NoBackendError(f"{msg}: {lack.reason}", cure=lack.cure)
        raise NoBackendError(msg, cure="See gpusnap backends, which lists what each offers")

    def probe(self) -> Probe:
        """Say whether the backend can work here; a probe that raises is an unusable one."""
        try:
            return self._call("probe", Probe)
        except GpusnapError as error:
            return Probe(usable=False, reasons=(error.text,))

    def devices(self) -> tuple[Device, ...]:
        """List the devices."""
        return self._call("devices", tuple)

    def processes(self) -> tuple[DeviceProcess, ...]:
        """List the processes on the devices."""
        return self._call("processes", tuple)

    def claim(self, target: Target) -> Claim:
        """Name the processes of a target that hold device state."""
        return self._call("claim", Claim, target=target)

    def preflight(
        self, target: Target, pids: tuple[int, ...], operation: Operation
    ) -> tuple[Finding, ...]:
        """Look for trouble ahead."""
        return self._call("preflight", tuple, target=target, pids=pids, operation=operation)

    def lock(self, pids: tuple[int, ...], timeout_us: int) -> States:
        """Stop device work, all or nothing."""
        return self._call("lock", dict, pids=pids, timeout_us=timeout_us)

    def checkpoint(self, pids: tuple[int, ...], progress: Progress = _no_progress) -> DeviceImage:
        """Move device state into host memory."""
        return self._call("checkpoint", DeviceImage, pids=pids, progress=progress)

    def restore(
        self, pids: tuple[int, ...], device_map: DeviceMap, progress: Progress = _no_progress
    ) -> States:
        """Move device state back."""
        return self._call("restore", dict, pids=pids, device_map=device_map, progress=progress)

    def unlock(self, pids: tuple[int, ...]) -> States:
        """Let device work go on."""
        return self._call("unlock", dict, pids=pids)

    def state(self, pids: tuple[int, ...]) -> States:
        """Read states from the driver."""
        return self._call("state", dict, pids=pids)

    def compatible(self, saved: tuple[Device, ...], devices: tuple[Device, ...]) -> Compatibility:
        """Map saved devices to those at hand, or say why not."""
        # A union cannot be checked by isinstance through one class; both are msgspec structs.
        answer = self._call("compatible", msgspec.Struct, saved=saved, devices=devices)
        return cast("Compatibility", answer)

    def criu_options(self, phase: CriuPhase, engine: Engine) -> CriuOptions:
        """Name what CRIU needs to be given."""
        return self._call("criu_options", CriuOptions, phase=phase, engine=engine)

    def verify_images(self, directory: str) -> tuple[Finding, ...]:
        """Check dumped images by the vendor's rules."""
        return self._call("verify_images", tuple, directory=directory)

    def describe_images(self, directory: str) -> tuple[SavedBuffers, ...]:
        """Count the buffers in the vendor's images; none where the backend has no such hook."""
        hook = _caller(self._manager, "gpusnap_describe_images", self._plugin)
        if not hook.get_hookimpls():
            return ()
        return self._call("describe_images", tuple, directory=directory)

    @property
    def has_bulk_images(self) -> bool:
        """Whether device memory may lie in images of its own, which :meth:`bulk_images` names."""
        hook = _caller(self._manager, "gpusnap_bulk_images", self._plugin)
        return bool(hook.get_hookimpls())

    def bulk_images(self, directory: str) -> tuple[BulkImage, ...]:
        """Name the images that hold device memory; none where the backend has no such hook."""
        if not self.has_bulk_images:
            return ()
        return self._call("bulk_images", tuple, directory=directory)

    def diagnose(self, target: Target, pids: tuple[int, ...]) -> tuple[Finding, ...]:
        """Look into processes with the vendor's debugger.

        Raises:
            UsageError: The backend has no such hook.
        """
        if not _caller(self._manager, "gpusnap_diagnose", self._plugin).get_hookimpls():
            msg = f"Backend {self.name} has no debugger to look into processes with"
            raise UsageError(msg, cure="Leave --rocgdb out")
        return self._call("diagnose", tuple, target=target, pids=pids)


_REPORT = "Report it to the plugin's authors, or uninstall the plugin"


class _LoadsEntryPoint(Protocol):
    name: str
    value: str

    def load(self) -> object: ...


class Plugins:
    """The registered plugins of one process."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager("gpusnap")
        self._manager.add_hookspecs(BackendSpec)
        self._manager.add_hookspecs(PluginSpec)
        self._backend_names: list[str] = []
        self._silenced: set[str] = set()
        self.broken: list[BrokenPlugin] = []

    def load(self) -> "Plugins":
        """Load all installed plugins one by one; a broken one is kept in ``broken``."""
        for group, is_backend in ((BACKEND_GROUP, True), (PLUGIN_GROUP, False)):
            for point in sorted(entry_points(group=group), key=lambda point: point.name):
                self._load_one(point, is_backend=is_backend)
        return self

    def _load_one(self, point: "EntryPoint | _LoadsEntryPoint", *, is_backend: bool) -> None:
        try:
            plugin = point.load()
            self.register(plugin, point.name, is_backend=is_backend)
        except GpusnapError as error:
            self.broken.append(BrokenPlugin(point.name, error.text))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            reason = f"{point.value} cannot be imported: {type(error).__name__}: {error}"
            self.broken.append(BrokenPlugin(point.name, reason))

    def register(self, plugin: object, name: str, *, is_backend: bool = False) -> None:
        """Register one plugin.

        Raises:
            PluginError: It has a hook with a wrong name or signature, lacks one, or was made
                for another version of the interface.
        """
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
            if is_backend:
                self._check_backend(plugin, name)
        except (ValueError, pluggy.PluginValidationError) as error:
            self._drop(plugin)
            msg = f"Plugin {name} does not fit the interface: {error}"
            raise PluginError(msg, cure=_REPORT) from error
        except GpusnapError:
            self._drop(plugin)
            raise
        if is_backend:
            self._backend_names.append(name)

    def _drop(self, plugin: object) -> None:
        if self._manager.is_registered(plugin):
            self._manager.unregister(plugin)

    def unregister(self, plugin: object) -> None:
        """Forget a plugin."""
        name = self._manager.get_name(plugin)
        self._drop(plugin)
        if name in self._backend_names:
            self._backend_names.remove(name)

    def _check_backend(self, plugin: object, name: str) -> None:
        callers = self._manager.get_hookcallers(plugin) or []
        missing = sorted(set(_BACKEND_HOOKS) - {caller.name for caller in callers})
        if missing:
            msg = f"Backend {name} lacks {', '.join(missing)}"
            raise PluginError(msg, cure=_REPORT)
        info = Backend(name, self._manager, plugin).info
        if info.api_version != BACKEND_API_VERSION:
            msg = (
                f"Backend {name} was made for version {info.api_version} of the backend "
                f"interface, this gpusnap has version {BACKEND_API_VERSION}"
            )
            raise PluginError(msg, cure="Update gpusnap or the backend")

    def backends(self) -> tuple[Backend, ...]:
        """All backends that loaded, usable here or not, by name."""
        plugins = ((name, self._manager.get_plugin(name)) for name in sorted(self._backend_names))
        return tuple(Backend(name, self._manager, plugin) for name, plugin in plugins)

    def backend(self, name: str) -> Backend:
        """One backend by name.

        Raises:
            NoBackendError: There is none of that name, or it is broken.
        """
        for backend in self.backends():
            if backend.name == name:
                return backend
        for broken in self.broken:
            if broken.name == name:
                msg = f"Backend {name} is broken: {broken.reason}"
                raise NoBackendError(msg, cure="See gpusnap backends")
        known = ", ".join(self._backend_names) or "none"
        msg = f"No backend is named {name} (installed: {known})"
        raise NoBackendError(msg, cure="See gpusnap backends")

    def usable(self) -> tuple[Backend, ...]:
        """The backends whose probe says they can work on this machine."""
        return tuple(backend for backend in self.backends() if backend.probe().usable)

    def emit(self, event: Event) -> None:
        """Tell every plugin, the latest first; one that raises is reported once.

        The command line registers last, so that it knows where an operation is before another
        plugin takes its time.
        """
        for implementation in reversed(self._manager.hook.gpusnap_event.get_hookimpls()):
            try:
                _caller(self._manager, "gpusnap_event", implementation.plugin)(event=event)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - none stops an operation
                self._silence(implementation.plugin_name, error)

    def _silence(self, name: str, error: BaseException) -> None:
        if name in self._silenced:
            return
        self._silenced.add(name)
        text = f"Plugin {name} failed on an event: {type(error).__name__}: {error}"
        cure: str | None = _REPORT
        if isinstance(error, GpusnapError):  # expected trouble, told in its own words
            text, cure = f"Plugin {name}: {error.text}", error.cure
        finding = Finding(code="plugin-event", severity=Severity.WARNING, text=text, cure=cure)
        self.emit(Found(finding=finding))


@functools.cache
def default_plugins() -> Plugins:
    """The installed plugins, loaded once a process."""
    return Plugins().load()
