import inspect
from collections.abc import Callable

import pytest

import gpusnap_amd
from gpusnap.errors import IncompatibleError, NoBackendError, refuse
from gpusnap.hookspecs import BackendSpec
from gpusnap.plugins import Backend, Plugins
from gpusnap.types import CriuPhase, DeviceMap, Engine, Operation, Severity
from gpusnap_amd import AmdBackend
from tests.amd.invented import Machine, make_target


@pytest.fixture
def registered(backend: AmdBackend) -> Backend:
    plugins = Plugins()
    plugins.register(backend, "amd", is_backend=True)
    return plugins.backend("amd")


def test_registers_with_every_hook_and_no_capability(registered: Backend) -> None:
    assert registered.info.capabilities == frozenset()
    assert "not yet run on AMD hardware" in (registered.info.note or "")


def test_entry_point_names_a_backend() -> None:
    assert isinstance(gpusnap_amd.backend, AmdBackend)


def test_signatures_are_those_of_the_interface() -> None:
    for name, spec in inspect.getmembers(BackendSpec, inspect.isfunction):
        assert inspect.signature(getattr(AmdBackend, name)) == inspect.signature(spec)


def test_facade_lists(machine: Machine, registered: Backend) -> None:
    machine.add_gpu(1)
    machine.add_kfd_process(70, {1: 5})
    assert registered.probe().usable
    (device,) = registered.devices()
    (process,) = registered.processes()
    assert process.device_uuid == device.uuid
    assert registered.claim(make_target(70)).pids == (70,)


@pytest.mark.parametrize("operation", Operation)
def test_preflight_refuses_by_name(registered: Backend, operation: Operation) -> None:
    findings = registered.preflight(make_target(69, 70), (70,), operation)
    (finding,) = findings
    assert (finding.code, finding.pid) == ("checkpoint-not-offered", 70)
    assert finding.severity is Severity.ERROR
    assert finding.text == (
        "Process 70 (train) holds state in an AMD GPU, and the AMD backend "
        f"cannot {operation.value} it yet"
    )
    with pytest.raises(NoBackendError, match="checkpoint-not-offered"):
        refuse(findings, IncompatibleError)


def test_preflight_of_nothing(registered: Backend) -> None:
    assert registered.preflight(make_target(69), (), Operation.CHECKPOINT) == ()


@pytest.mark.parametrize(
    "ask",
    [
        lambda backend: backend.lock((1,), 1000),
        lambda backend: backend.checkpoint((1,)),
        lambda backend: backend.restore((1,), DeviceMap()),
        lambda backend: backend.unlock((1,)),
        lambda backend: backend.state((1,)),
        lambda backend: backend.compatible((), ()),
        lambda backend: backend.criu_options(CriuPhase.DUMP, Engine.DRIVER),
        lambda backend: backend.verify_images("/nowhere"),
    ],
)
def test_the_rest_is_refused(registered: Backend, ask: Callable[[Backend], object]) -> None:
    with pytest.raises(NoBackendError, match="AMD backend cannot checkpoint processes yet"):
        ask(registered)
