"""Tests of what a backend says about itself, its devices and processes; nothing is stopped."""

import inspect
import os
import re
from pathlib import Path

import pytest

from gpusnap.errors import GpusnapError
from gpusnap.hookspecs import BackendSpec, PluginSpec
from gpusnap.target import find_target
from gpusnap.testing.conformance.fixtures import Fixtures
from gpusnap.testing.conformance.hooks import Hooks
from gpusnap.testing.conformance.programs import (
    DeviceProgram,
    require,
    stranger,
    vanished_pid,
)
from gpusnap.types import (
    BACKEND_API_VERSION,
    Capability,
    CriuOptions,
    CriuPhase,
    Device,
    DeviceState,
    Engine,
    Finding,
    Operation,
    Probe,
)

_HOOKS = dict(inspect.getmembers(BackendSpec, inspect.isfunction))
_KNOWN = _HOOKS | dict(inspect.getmembers(PluginSpec, inspect.isfunction))
_NAME = re.compile(r"[a-z][a-z0-9-]*")


class AnswersConformance(Fixtures):
    """What every listing, preflight and claim relies on."""

    def test_every_hook_is_there(self, hooks: Hooks, backend: object) -> None:
        """Each hook of the interface is implemented and marked."""
        callers = hooks.manager.get_hookcallers(backend) or []
        missing = sorted(set(_HOOKS) - {caller.name for caller in callers})
        require(not missing, f"The backend lacks {missing}")

    def test_hooks_take_known_arguments(self, backend: object) -> None:
        """No hook asks for an argument the host does not give, and none is misspelt."""
        for name, method in inspect.getmembers(backend, inspect.ismethod):
            if not name.startswith("gpusnap_"):
                continue
            require(name in _KNOWN, f"{name} is no hook of the interface")
            known = set(inspect.signature(_KNOWN[name]).parameters)
            unknown = set(inspect.signature(method).parameters) - known
            require(not unknown, f"{name} asks for {sorted(unknown)}")

    def test_info_is_valid(self, hooks: Hooks) -> None:
        """Name, vendor, interface version and capabilities."""
        info = hooks.info()
        require(bool(_NAME.fullmatch(info.name)), f"{info.name!r} is no name to type")
        require(bool(info.vendor), "The vendor has no name")
        require(info.api_version == BACKEND_API_VERSION, "Made for another interface version")
        unknown = info.capabilities - frozenset(Capability)
        require(not unknown, f"Unknown capabilities {sorted(unknown)}")
        require(hooks.info() == info, "The second answer differs from the first")

    def test_probe_says_usable(self, hooks: Hooks) -> None:
        """The suite runs where the device is; without it nothing would be tested."""
        probe = hooks.probe()
        require(probe.usable, f"The backend is not usable here: {probe.reasons}")

    def test_probe_never_raises(self, hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the environment it knows, it still answers, and says why where it cannot."""
        for name in _environment_to_lose():
            monkeypatch.delenv(name)
        try:
            probe: Probe = hooks.probe()
        except Exception as error:  # noqa: BLE001 - that is the test
            pytest.fail(f"The probe raised {type(error).__name__}: {error}")
        require(probe.usable or bool(probe.reasons), "Not usable, and no reason is given")

    def test_devices_are_sane(self, hooks: Hooks) -> None:
        """Indexes, UUIDs and memory of the devices."""
        devices = hooks.devices()
        require(bool(devices), "No devices")
        require([each.index for each in devices] == [*range(len(devices))], "Indexes have gaps")
        require(len({each.uuid for each in devices}) == len(devices), "UUIDs are not unique")
        for device in devices:
            _check_device(device)

    def test_running_program_is_known(self, hooks: Hooks, program: DeviceProgram) -> None:
        """A program with device memory is claimed, listed and running."""
        claim = hooks.claim(find_target(program.pid))
        require(claim.pids == (program.pid,), f"Claimed {claim.pids}, not {program.pid}")
        require(bool(claim.reason), "The claim gives no reason")
        uses = [each for each in hooks.processes() if each.pid == program.pid]
        known = {device.uuid for device in hooks.devices()}
        require(bool(uses), f"Process {program.pid} is not listed")
        require({each.device_uuid for each in uses} <= known, "It is listed on unknown devices")
        state = hooks.state((program.pid,))
        require(state == {program.pid: DeviceState.RUNNING}, f"Its state is {state}")

    def test_stranger_is_not_claimed(self, hooks: Hooks) -> None:
        """A process without device state is nobody's."""
        with stranger() as target:
            claim = hooks.claim(target)
            require(claim.pids == (), f"Process {target.root.pid} was claimed: {claim.reason}")
            require(bool(claim.reason), "The empty claim gives no reason")

    def test_running_program_passes_preflight(self, hooks: Hooks, program: DeviceProgram) -> None:
        """Nothing stands in the way of a checkpoint of a program that just computes."""
        if not hooks.offers(Capability.CHECKPOINT):
            pytest.skip(f"The backend does not declare {Capability.CHECKPOINT.value}")
        target = find_target(program.pid)
        findings = hooks.preflight(target, (program.pid,), Operation.CHECKPOINT)
        require(not _errors(findings), f"Preflight found {_errors(findings)}")

    def test_findings_can_be_read(self, hooks: Hooks, program: DeviceProgram) -> None:
        """Every operation can be asked about; findings have a code and a sentence."""
        target = find_target(program.pid)
        for operation in Operation:
            for finding in hooks.preflight(target, (program.pid,), operation):
                require(bool(_NAME.fullmatch(finding.code)), f"Odd code {finding.code!r}")
                require(bool(finding.text), f"{finding.code} has no text")

    def test_vanished_process_is_left_out(self, hooks: Hooks) -> None:
        """The state of a process that is gone is no state."""
        pid = vanished_pid()
        states = hooks.state((pid,))
        require(states == {}, f"The vanished process {pid} has states {states}")

    def test_nothing_to_do_is_no_trouble(self, hooks: Hooks) -> None:
        """Hooks that take PIDs accept none at all."""
        require(hooks.state(()) == {}, "state of no process is not empty")
        require(hooks.unlock(()) == {}, "unlock of no process is not empty")

    def test_criu_options(self, hooks: Hooks) -> None:
        """With gpusnap driving the device, CRIU's options are known for both phases."""
        if not hooks.offers(Capability.CHECKPOINT):
            pytest.skip(f"The backend does not declare {Capability.CHECKPOINT.value}")
        for phase in CriuPhase:
            hooks.ask("criu_options", CriuOptions, phase=phase, engine=Engine.DRIVER)

    def test_criu_plugin_engine(self, hooks: Hooks) -> None:
        """The engine inside CRIU is either there or refused in gpusnap's own words."""
        for phase in CriuPhase:
            try:
                hooks.ask("criu_options", CriuOptions, phase=phase, engine=Engine.CRIU_PLUGIN)
            except GpusnapError as error:
                require(bool(error.text), "The refusal says nothing")

    def test_empty_images(self, hooks: Hooks, tmp_path: Path) -> None:
        """Images that hold nothing are an answer, not an exception."""
        hooks.ask_all("verify_images", Finding, directory=str(tmp_path))


def _environment_to_lose() -> tuple[str, ...]:
    kept = {"PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR", "PYTEST_CURRENT_TEST"}
    return tuple(name for name in os.environ if name not in kept)


def _check_device(device: Device) -> None:
    for name in ("uuid", "vendor", "model"):
        require(bool(getattr(device, name)), f"Device {device.index} has no {name}")
    for name in ("memory_total", "memory_free"):
        value = getattr(device, name)
        require(value is None or value >= 0, f"Device {device.index} has {name} {value}")
    total, free = device.memory_total, device.memory_free
    if total is not None and free is not None:
        require(free <= total, f"Device {device.index} has more memory free than in all")


def _errors(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.text for finding in findings if finding.severity.value == "error"]
