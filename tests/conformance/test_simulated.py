"""The simulated backend passes the suite, and the suite notices backends that are at fault."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpusnap.errors import GpusnapError
from gpusnap.hookspecs import Progress, States, hookimpl
from gpusnap.testing import create_machine
from gpusnap.testing.backend import SimulatedBackend, backend
from gpusnap.testing.conformance import BackendConformance, StartProcess
from gpusnap.testing.conformance.hooks import Hooks
from gpusnap.types import (
    Claim,
    Compatibility,
    Device,
    DeviceImage,
    DeviceMap,
    Finding,
    Probe,
    Region,
    Target,
)
from tests.testing.running import Program, start_program


class OnASimulatedMachine:
    @pytest.fixture(autouse=True)
    def machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        machine = create_machine(tmp_path / "machine", devices=2)
        monkeypatch.setenv("GPUSNAP_SIM_DIR", str(machine.path))
        self.simulated = machine

    @pytest.fixture
    def start_process(self, tmp_path: Path) -> Iterator[StartProcess]:
        programs: list[Program] = []

        def start() -> Program:
            log = tmp_path / f"log-{len(programs)}"
            programs.append(start_program(self.simulated, log))
            return programs[-1]

        yield start
        for program in programs:
            program.kill()


class TestSimulatedBackend(OnASimulatedMachine, BackendConformance):
    @pytest.fixture
    def backend(self) -> object:
        return backend


class ProbeRaises(SimulatedBackend):
    @hookimpl
    def gpusnap_probe(self) -> Probe:
        msg = "no driver"
        raise OSError(msg)


class AnswersNone(SimulatedBackend):
    @hookimpl
    def gpusnap_verify_images(self, directory: str) -> tuple[Finding, ...]:
        return None  # type: ignore[return-value]


class ClaimsAll(SimulatedBackend):
    @hookimpl
    def gpusnap_claim(self, target: Target) -> Claim:
        claim = super().gpusnap_claim(target)
        return msgspec.structs.replace(claim, pids=target.pids)


class LocksSome(SimulatedBackend):
    @hookimpl
    def gpusnap_lock(self, pids: tuple[int, ...], timeout_us: int) -> States:
        states: States = {}
        for pid in pids:
            states |= super().gpusnap_lock((pid,), timeout_us)
        return states


class LocksNothing(SimulatedBackend):
    @hookimpl
    def gpusnap_lock(self, pids: tuple[int, ...], timeout_us: int) -> States:
        return self.gpusnap_state(pids)


class InventsRegions(SimulatedBackend):
    @hookimpl
    def gpusnap_checkpoint(self, pids: tuple[int, ...], progress: Progress) -> DeviceImage:
        image = super().gpusnap_checkpoint(pids, progress)
        first = image.regions[0]
        wrong = Region(first.pid, first.start - 4096, first.length)
        return msgspec.structs.replace(image, regions=(wrong,))


class ForgetsProcesses(SimulatedBackend):
    @hookimpl
    def gpusnap_restore(
        self, pids: tuple[int, ...], device_map: DeviceMap, progress: Progress
    ) -> States:
        super().gpusnap_restore(pids, device_map, progress)
        return {}


class AcceptsAnything(SimulatedBackend):
    @hookimpl
    def gpusnap_compatible(
        self, saved: tuple[Device, ...], devices: tuple[Device, ...]
    ) -> Compatibility:
        return DeviceMap(pairs=tuple((device.uuid, device.uuid) for device in saved))


class RaisesOddly(SimulatedBackend):
    @hookimpl
    def gpusnap_unlock(self, pids: tuple[int, ...]) -> States:
        try:
            return super().gpusnap_unlock(pids)
        except GpusnapError as error:
            raise RuntimeError from error


class HookMisspelt(SimulatedBackend):
    @hookimpl
    def gpusnap_locks(self, pids: tuple[int, ...], timeout_us: int) -> States:
        return {}


class TestFaults(OnASimulatedMachine):
    """Each fault fails the test that is there for it."""

    suite = BackendConformance()

    def fails(self, test: Callable[..., None], *arguments: object) -> None:
        with pytest.raises((pytest.fail.Exception, RuntimeError)):
            test(*arguments)

    def test_probe_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails(self.suite.test_probe_never_raises, Hooks(ProbeRaises()), monkeypatch)

    def test_answers_none(self, tmp_path: Path) -> None:
        self.fails(self.suite.test_empty_images, Hooks(AnswersNone()), tmp_path)

    def test_claims_all(self) -> None:
        self.fails(self.suite.test_stranger_is_not_claimed, Hooks(ClaimsAll()))

    def test_misspelt_hook(self) -> None:
        self.fails(self.suite.test_hooks_take_known_arguments, HookMisspelt())

    def test_missing_hook(self) -> None:
        class Lacking:
            @hookimpl
            def gpusnap_probe(self) -> Probe:
                return Probe(usable=True)

        lacking = Lacking()
        self.fails(self.suite.test_every_hook_is_there, Hooks(lacking), lacking)

    @pytest.mark.parametrize("test", ["other_model_is_named", "missing_device_is_named"])
    def test_accepts_anything(self, test: str) -> None:
        self.fails(getattr(self.suite, f"test_{test}"), Hooks(AcceptsAnything()))

    def test_raises_oddly(self) -> None:
        self.fails(self.suite.test_vanished_process_is_no_surprise, Hooks(RaisesOddly()))

    @pytest.mark.parametrize(
        ("fault", "test"),
        [
            (LocksSome, "lock_is_all_or_nothing"),
            (LocksNothing, "lock_stops_and_unlock_resumes"),
            (InventsRegions, "regions_are_new_private_memory"),
            (ForgetsProcesses, "whole_cycle"),
        ],
    )
    def test_of_processes(
        self, fault: type[SimulatedBackend], test: str, start_process: StartProcess
    ) -> None:
        program = start_process()
        assert isinstance(program, Program)
        program.compute()
        faulty = fault()
        try:
            self.fails(getattr(self.suite, f"test_{test}"), Hooks(faulty), program)
        finally:
            faulty.close()
