"""Tests of lock, checkpoint, restore and unlock on programs that compute."""

import contextlib

import pytest

from gpusnap.errors import GpusnapError
from gpusnap.target import Mapping, read_maps
from gpusnap.testing.conformance.fixtures import Fixtures, need
from gpusnap.testing.conformance.hooks import Hooks
from gpusnap.testing.conformance.programs import (
    DeviceProgram,
    StartProcess,
    await_steps,
    require,
    require_stopped,
    vanished_pid,
)
from gpusnap.types import Capability, DeviceImage, DeviceState, Region


class CycleConformance(Fixtures):
    """What every checkpoint, restore, suspend and rollback relies on."""

    def test_lock_stops_and_unlock_resumes(self, hooks: Hooks, program: DeviceProgram) -> None:
        """A locked program does no device work; both calls may be repeated."""
        need(hooks, Capability.CHECKPOINT)
        pids = (program.pid,)
        for _ in range(2):
            _expect(hooks.lock(pids, self.lock_timeout_us), pids, DeviceState.LOCKED)
        _expect(hooks.state(pids), pids, DeviceState.LOCKED)
        require_stopped(program)
        for _ in range(2):
            _expect(hooks.unlock(pids), pids, DeviceState.RUNNING)
        await_steps(program)

    def test_unlock_of_a_running_program(self, hooks: Hooks, program: DeviceProgram) -> None:
        """It is the rollback of steps that may never have happened."""
        need(hooks, Capability.CHECKPOINT)
        pids = (program.pid,)
        _expect(hooks.unlock(pids), pids, DeviceState.RUNNING)
        await_steps(program)

    def test_restore_of_a_running_program(self, hooks: Hooks, program: DeviceProgram) -> None:
        """A process that is not checkpointed is left as it is."""
        need(hooks, Capability.CHECKPOINT)
        pids = (program.pid,)
        _expect(hooks.restore(pids), pids, DeviceState.RUNNING)
        await_steps(program)

    def test_lock_is_all_or_nothing(self, hooks: Hooks, program: DeviceProgram) -> None:
        """Where one process cannot be locked, the others run on."""
        need(hooks, Capability.CHECKPOINT)
        with pytest.raises(GpusnapError):
            hooks.lock((program.pid, vanished_pid()), self.lock_timeout_us)
        pids = (program.pid,)
        _expect(hooks.state(pids), pids, DeviceState.RUNNING)
        await_steps(program)

    def test_checkpoint_needs_a_lock(self, hooks: Hooks, program: DeviceProgram) -> None:
        """A running process is not checkpointed, and runs on."""
        need(hooks, Capability.CHECKPOINT)
        with pytest.raises(GpusnapError):
            hooks.checkpoint((program.pid,))
        hooks.unlock((program.pid,))
        await_steps(program)

    def test_whole_cycle(self, hooks: Hooks, program: DeviceProgram) -> None:
        """Lock, checkpoint, restore, unlock; twice, and the program computes on."""
        need(hooks, Capability.CHECKPOINT)
        pids = (program.pid,)
        for _ in range(2):
            self._checkpoint(hooks, pids)
            _expect(hooks.state(pids), pids, DeviceState.CHECKPOINTED)
            require_stopped(program)
            self._resume(hooks, pids)
            await_steps(program)

    def test_devices_are_free_of_a_checkpointed_program(
        self, hooks: Hooks, program: DeviceProgram
    ) -> None:
        """Its memory is back on no device's account; the claim stays."""
        need(hooks, Capability.CHECKPOINT)
        pids = (program.pid,)
        self._checkpoint(hooks, pids)
        held = sum(each.memory or 0 for each in hooks.processes() if each.pid == program.pid)
        require(held == 0, f"Process {program.pid} still holds {held} bytes of the devices")
        self._resume(hooks, pids)

    def test_regions_are_new_private_memory(self, hooks: Hooks, program: DeviceProgram) -> None:
        """Regions were not mapped before, and are private, anonymous and large enough."""
        need(hooks, Capability.CHECKPOINT)
        pids = (program.pid,)
        hooks.lock(pids, self.lock_timeout_us)
        before = read_maps(program.pid)
        image = hooks.checkpoint(pids)
        after = read_maps(program.pid)
        require(bool(image.regions), "No regions, yet the program held device memory")
        for region in image.regions:
            require(region.pid == program.pid, f"{region} is of a process not asked about")
            require(_private(region, after), f"{region} is no private anonymous rw memory")
            require(not _overlaps(region, before), f"{region} was mapped before")
        _check_sizes(hooks, image)
        self._resume(hooks, pids)

    def test_two_programs_at_once(self, hooks: Hooks, start_process: StartProcess) -> None:
        """Each call acts on all its processes."""
        need(hooks, Capability.CHECKPOINT)
        programs = (start_process(), start_process())
        for program in programs:
            await_steps(program)
        pids = tuple(program.pid for program in programs)
        image = self._checkpoint(hooks, pids)
        require({each.pid for each in image.regions} == {*pids}, "Not each has regions")
        self._resume(hooks, pids)
        for program in programs:
            await_steps(program)

    def test_vanished_process_is_no_surprise(self, hooks: Hooks) -> None:
        """Calls for a process that is gone answer, or refuse in gpusnap's own words."""
        need(hooks, Capability.CHECKPOINT)
        pids = (vanished_pid(),)
        calls = (
            lambda: hooks.lock(pids, 1000),
            lambda: hooks.checkpoint(pids),
            lambda: hooks.restore(pids),
            lambda: hooks.unlock(pids),
        )
        for call in calls:
            with contextlib.suppress(GpusnapError):
                call()
        require(hooks.state(pids) == {}, f"The vanished process {pids[0]} has a state")

    def _checkpoint(self, hooks: Hooks, pids: tuple[int, ...]) -> DeviceImage:
        _expect(hooks.lock(pids, self.lock_timeout_us), pids, DeviceState.LOCKED)
        return hooks.checkpoint(pids)

    def _resume(self, hooks: Hooks, pids: tuple[int, ...]) -> None:
        states = hooks.restore(pids)
        allowed = {DeviceState.LOCKED, DeviceState.RUNNING}
        require({*states} == {*pids}, f"restore answered for {sorted(states)}")
        require({*states.values()} <= allowed, f"After restore the states are {states}")
        _expect(hooks.unlock(pids), pids, DeviceState.RUNNING)


def _expect(states: dict[int, DeviceState], pids: tuple[int, ...], state: DeviceState) -> None:
    require(states == dict.fromkeys(pids, state), f"States are {states}, not {state.value}")


def _overlaps(region: Region, maps: tuple[Mapping, ...]) -> bool:
    end = region.start + region.length
    return any(each.start < end and region.start < each.end for each in maps)


def _private(region: Region, maps: tuple[Mapping, ...]) -> bool:
    end = region.start + region.length
    return any(
        each.start <= region.start
        and end <= each.end
        and each.private_anonymous
        and each.permissions == "rw-p"
        for each in maps
    )


def _check_sizes(hooks: Hooks, image: DeviceImage) -> None:
    known = {device.uuid for device in hooks.devices()}
    require({use.device_uuid for use in image.uses} <= known, "Memory of unknown devices")
    held = sum(use.memory for use in image.uses)
    saved = sum(region.length for region in image.regions)
    require(saved >= held, f"{held} bytes were on the devices, the regions hold {saved}")
