import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gpusnap.errors import DeviceError, NoBackendError, PluginError
from gpusnap.events import Event, Found, Phase, PhaseStarted
from gpusnap.hookspecs import hookimpl
from gpusnap.plugins import BrokenPlugin, Plugins
from gpusnap.testing.backend import SimulatedBackend
from gpusnap.types import BackendInfo, Probe


@dataclass
class Point:
    """Stands for an entry point."""

    load: Callable[[], object]
    name: str = "point"
    value: str = "package:plugin"


def broken(load: Callable[[], object], *, is_backend: bool = True) -> BrokenPlugin:
    plugins = Plugins()
    plugins._load_one(Point(load), is_backend=is_backend)
    assert plugins.backends() == ()
    (found,) = plugins.broken
    return found


def test_the_installed_backends() -> None:
    names = [backend.name for backend in Plugins().load().backends()]
    assert {"amd", "nvidia", "simulated"} <= set(names)


@pytest.mark.parametrize("error", [ImportError("no libfoo"), SystemExit(3), ValueError("bad")])
def test_a_plugin_that_cannot_be_imported(error: BaseException) -> None:
    def load() -> object:
        raise error

    found = broken(load)
    assert found.name == "point"
    assert type(error).__name__ in found.reason
    assert "package:plugin" in found.reason


def test_an_interrupt_is_not_swallowed() -> None:
    def load() -> object:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Plugins()._load_one(Point(load), is_backend=True)


def test_a_backend_that_lacks_hooks_names_them() -> None:
    class Incomplete:
        @hookimpl
        def gpusnap_probe(self) -> Probe:
            return Probe(usable=True)

    reason = broken(Incomplete).reason
    assert "gpusnap_lock" in reason
    assert "gpusnap_probe" not in reason


def test_a_hook_with_a_wrong_name() -> None:
    class Misspelt(SimulatedBackend):
        @hookimpl
        def gpusnap_lokc(self) -> None: ...

    assert "gpusnap_lokc" in broken(Misspelt).reason


def test_a_hook_with_a_wrong_parameter() -> None:
    class Wrong:
        @hookimpl
        def gpusnap_event(self, happening: Event) -> None: ...

    assert "happening" in broken(Wrong, is_backend=False).reason


def test_another_version_of_the_interface() -> None:
    class Newer(SimulatedBackend):
        @hookimpl
        def gpusnap_backend_info(self) -> BackendInfo:
            return BackendInfo(name="newer", vendor="x", capabilities=frozenset(), api_version=99)

    assert "version 99" in broken(Newer).reason


def test_a_broken_plugin_does_not_keep_others_from_loading() -> None:
    plugins = Plugins()
    plugins._load_one(Point(object, name="bad"), is_backend=True)
    plugins._load_one(Point(SimulatedBackend, name="good"), is_backend=True)
    assert [backend.name for backend in plugins.backends()] == ["good"]
    assert [plugin.name for plugin in plugins.broken] == ["bad"]
    with pytest.raises(NoBackendError, match="bad is broken"):
        plugins.backend("bad")
    with pytest.raises(NoBackendError, match="No backend is named other"):
        plugins.backend("other")


class Failing(SimulatedBackend):
    """Its answers are all wrong in some way."""

    @hookimpl
    def gpusnap_probe(self) -> Probe:
        raise RuntimeError("driver on fire")

    @hookimpl
    def gpusnap_devices(self) -> tuple[()]:
        raise RuntimeError("driver on fire")

    @hookimpl
    def gpusnap_unlock(self, pids: tuple[int, ...]) -> dict[int, str]:  # type: ignore[override]
        raise DeviceError("The driver refused", pid=pids[0])

    @hookimpl
    def gpusnap_state(self, pids: tuple[int, ...]) -> None:  # type: ignore[override]
        return None


@pytest.fixture
def plugins() -> Plugins:
    plugins = Plugins()
    plugins.register(SimulatedBackend(), "sound", is_backend=True)
    plugins.register(Failing(), "failing", is_backend=True)
    return plugins


def test_a_chosen_backend_is_asked_alone(plugins: Plugins) -> None:
    assert plugins.backend("sound").info.name == "simulated"
    with pytest.raises(PluginError, match="Backend failing failed in devices: RuntimeError"):
        plugins.backend("failing").devices()


def test_a_probe_that_raises_is_an_unusable_backend(plugins: Plugins) -> None:
    probe = plugins.backend("failing").probe()
    assert not probe.usable
    assert "driver on fire" in probe.reasons[0]


def test_an_expected_error_passes_as_it_is(plugins: Plugins) -> None:
    with pytest.raises(DeviceError, match="The driver refused"):
        plugins.backend("failing").unlock((1,))


def test_none_is_no_answer(plugins: Plugins) -> None:
    with pytest.raises(PluginError, match="answered state with"):
        plugins.backend("failing").state((1,))


def test_a_listener_that_raises_is_told_once_and_does_no_harm(plugins: Plugins) -> None:
    heard: list[Event] = []

    class Listener:
        @hookimpl
        def gpusnap_event(self, event: Event) -> None:
            heard.append(event)

    class Raising:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        @hookimpl
        def gpusnap_event(self, event: Event) -> None:
            raise self.error

    plugins.register(Raising(RuntimeError("cannot listen")), "raising")
    plugins.register(Listener(), "listener")
    plugins.register(Raising(SystemExit(1)), "raising too")
    for _ in range(2):
        plugins.emit(PhaseStarted(phase=Phase.LOCK))
    warnings = [event.finding.text for event in heard if isinstance(event, Found)]
    assert sorted(text.split(" failed")[0] for text in warnings) == [
        "Plugin raising",
        "Plugin raising too",
    ]
    assert sum(isinstance(event, PhaseStarted) for event in heard) == 2


def test_importing_the_package_is_light() -> None:
    import subprocess

    script = "import sys, gpusnap; print('google' in sys.modules, 'pluggy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]
