import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

import gpusnap_amd
from gpusnap.errors import IncompatibleError, NoBackendError, refuse
from gpusnap.hookspecs import BackendSpec
from gpusnap.plugins import Backend, Plugins
from gpusnap.types import Capability, CriuPhase, DeviceMap, Engine, Operation, Severity
from gpusnap_amd import AmdBackend
from tests.amd.invented import Machine, make_target


@pytest.fixture
def registered(backend: AmdBackend) -> Backend:
    plugins = Plugins()
    plugins.register(backend, "amd", is_backend=True)
    return plugins.backend("amd")


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "amdgpu_plugin.so"
    file.touch()
    monkeypatch.setenv("GPUSNAP_AMDGPU_PLUGIN", str(file))
    return file


def test_registers_with_every_hook_and_criu_does_all(registered: Backend) -> None:
    assert registered.info.capabilities == {Capability.CRIU_PLUGIN}
    assert "not yet run on AMD hardware" in (registered.info.note or "")


def test_refusals_say_why(registered: Backend) -> None:
    cures = {
        Capability.CHECKPOINT: "Leave out --engine driver",
        Capability.SUSPEND: "Use gpusnap checkpoint --kill and, later, gpusnap restore",
    }
    for capability, cure in cures.items():
        with pytest.raises(NoBackendError) as refusal:
            registered.require(capability)
        assert refusal.value.text == (
            f"Backend amd does not offer {capability.value}: AMD's driver gives a process's device "
            "state to nobody but CRIU's amdgpu plugin, in the middle of a dump"
        )
        assert refusal.value.cure == cure


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


@pytest.mark.parametrize("operation", [Operation.SUSPEND, Operation.RESUME])
def test_preflight_refuses_by_name(
    machine: Machine, registered: Backend, operation: Operation
) -> None:
    machine.add_gpu(1)
    findings = registered.preflight(make_target(69, 70), (70,), operation)
    finding, untried = findings
    assert (untried.code, untried.severity) == ("amd-untried", Severity.INFO)
    assert "not yet run on AMD hardware" in untried.text
    assert (finding.code, finding.pid) == ("checkpoint-not-offered", 70)
    assert finding.severity is Severity.ERROR
    assert finding.text == (
        f"Process 70 (train) holds state in an AMD GPU, and AMD's driver cannot {operation.value} "
        "it"
    )
    with pytest.raises(NoBackendError, match="checkpoint-not-offered"):
        refuse(findings, IncompatibleError)


def test_preflight_lets_a_checkpoint_pass(machine: Machine, registered: Backend) -> None:
    machine.add_gpu(1)
    (untried,) = registered.preflight(make_target(70), (70,), Operation.CHECKPOINT)
    assert untried.code == "amd-untried"


def test_preflight_misses_the_plugin(machine: Machine, registered: Backend, plugin: Path) -> None:
    machine.add_gpu(1)
    plugin.unlink()
    missing, _ = registered.preflight(make_target(70), (70,), Operation.CHECKPOINT)
    assert (missing.code, missing.severity) == ("amd-plugin-missing", Severity.ERROR)
    assert str(plugin) in missing.text


def test_preflight_tells_skipped_nodes(machine: Machine, registered: Backend) -> None:
    machine.add_gpu(1)
    machine.add_gpu(2)
    machine.write(f"{machine.node(2)}/properties", b"\xff")
    findings = registered.preflight(make_target(70), (70,), Operation.CHECKPOINT)
    (told,) = [finding for finding in findings if finding.code == "amd-node-skipped"]
    assert told.severity is Severity.WARNING
    assert "KFD node 2" in told.text


def test_preflight_of_nothing(registered: Backend) -> None:
    assert registered.preflight(make_target(69), (), Operation.CHECKPOINT) == ()


@pytest.mark.parametrize(
    "ask",
    [
        lambda backend: backend.lock((1,), 1000),
        lambda backend: backend.checkpoint((1,)),
        lambda backend: backend.restore((1,), DeviceMap()),
        lambda backend: backend.criu_options(CriuPhase.DUMP, Engine.DRIVER),
    ],
)
def test_the_rest_is_refused(registered: Backend, ask: Callable[[Backend], object]) -> None:
    with pytest.raises(NoBackendError, match="to nobody but CRIU's amdgpu plugin"):
        ask(registered)
