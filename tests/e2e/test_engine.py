"""The criu-plugin engine fails closed: a plugin that took no part in a dump voids it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpusnap
from gpusnap.errors import CriuError, NoBackendError, UsageError
from gpusnap.hookspecs import hookimpl
from gpusnap.plan import plan_checkpoint
from gpusnap.plugins import Plugins
from gpusnap.target import identity
from gpusnap.testing.backend import SimulatedBackend
from gpusnap.types import (
    BackendInfo,
    Capability,
    Claim,
    CriuOptions,
    CriuPhase,
    Device,
    DeviceState,
    Engine,
    Finding,
    Operation,
    Probe,
    Target,
)
from tests.e2e.jobs import start_detached


class PluginBackend(SimulatedBackend):
    """Claims every process, and has CRIU do all the work by a plugin that is not there."""

    def __init__(self, options: CriuOptions) -> None:
        super().__init__()
        self._options = options

    @hookimpl
    def gpusnap_backend_info(self) -> BackendInfo:
        offered = frozenset({Capability.CRIU_PLUGIN})
        return BackendInfo(name="plugin", vendor="nobody", capabilities=offered)

    @hookimpl
    def gpusnap_probe(self) -> Probe:
        return Probe(usable=True)

    @hookimpl
    def gpusnap_devices(self) -> tuple[Device, ...]:
        return ()

    @hookimpl
    def gpusnap_processes(self) -> tuple[()]:
        return ()

    @hookimpl
    def gpusnap_claim(self, target: Target) -> Claim:
        return Claim(pids=target.pids, reason="all of them")

    @hookimpl
    def gpusnap_preflight(
        self, target: Target, pids: tuple[int, ...], operation: Operation
    ) -> tuple[Finding, ...]:
        return ()

    @hookimpl
    def gpusnap_state(self, pids: tuple[int, ...]) -> dict[int, DeviceState]:
        return dict.fromkeys(pids, DeviceState.RUNNING)

    @hookimpl
    def gpusnap_criu_options(self, phase: CriuPhase, engine: Engine) -> CriuOptions:
        return self._options


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "state"))
    start_detached(["sleep", "600"], tmp_path / "pid", dict(os.environ))
    pid = int((tmp_path / "pid").read_text())
    yield pid
    os.kill(pid, 9)


def plugins(options: CriuOptions) -> Plugins:
    plugins = Plugins()
    plugins.register(PluginBackend(options), "plugin", is_backend=True)
    return plugins


@pytest.mark.parametrize("leave_running", [True, False])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (CriuOptions(inventory_plugin="cuda_plugin"), "cuda_plugin took no part in the dump"),
        (CriuOptions(expected_images=("amdgpu-kfd-*.img",)), "no image amdgpu-kfd"),
    ],
)
def test_a_dump_without_the_plugin_is_void(
    sleeper: int, tmp_path: Path, options: CriuOptions, words: str, leave_running: bool
) -> None:
    before = identity(sleeper)
    with pytest.raises(CriuError, match=words):
        gpusnap.create_checkpoint(
            sleeper,
            tmp_path / "repository" / "one",
            engine="criu-plugin",
            leave_running=leave_running,
            plugins=plugins(options),
        )
    assert identity(sleeper) == before
    assert gpusnap.Repository.open(tmp_path / "repository").snapshots() == ()


def test_a_backend_that_offers_no_driver_engine(sleeper: int, tmp_path: Path) -> None:
    with pytest.raises(NoBackendError, match="does not offer checkpoint"):
        gpusnap.create_checkpoint(
            sleeper,
            tmp_path / "repository" / "one",
            engine="driver",
            plugins=plugins(CriuOptions()),
        )


def test_the_engine_is_the_one_that_the_backend_offers(sleeper: int, tmp_path: Path) -> None:
    path = tmp_path / "repository" / "one"
    given = plugins(CriuOptions())
    assert plan_checkpoint(sleeper, path, plugins=given).engine is Engine.CRIU_PLUGIN
    with pytest.raises(UsageError, match="cannot be saved incrementally"):
        gpusnap.create_checkpoint(sleeper, path, incremental=True, plugins=given)
    assert plan_checkpoint(sleeper, path, plugins=Plugins()).engine is Engine.DRIVER
