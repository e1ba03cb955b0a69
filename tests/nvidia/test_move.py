"""Checkpoint and restore of device state, without CRIU."""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpusnap.errors import DeadlineError, DeviceError
from gpusnap.target import read_maps
from gpusnap.types import DeviceMap, DeviceState, DeviceUse
from gpusnap_nvidia import NvidiaBackend
from tests.nvidia.machine import Program, SimulatedMachine, await_true, ignore

LOCK_US = 60_000_000
UUID = "GPU-01112233-4455-6677-8899-aabbccddee0{}"


def start_locked(backend: NvidiaBackend, machine: SimulatedMachine, name: str = "job") -> Program:
    backend.gpusnap_probe()  # starts the worker, which may take longer than a program runs
    machine.set(kernel_ms=50)  # slow until it is locked
    program = machine.start_program(200, name=name)
    backend.gpusnap_lock((program.pid,), LOCK_US)
    machine.clear("kernel_ms")
    return program


def come_back(backend: NvidiaBackend, program: Program) -> None:
    backend.gpusnap_restore((program.pid,), DeviceMap(), ignore)
    backend.gpusnap_unlock((program.pid,))
    assert program.result() == program.expected


def test_image(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    program = start_locked(backend, machine)
    moved: list[tuple[int, int]] = []
    image = backend.gpusnap_checkpoint((program.pid,), lambda *both: moved.append(both))
    page = os.sysconf("SC_PAGE_SIZE")
    (region,) = image.regions
    assert (region.pid, region.length) == (program.pid, program.memory + page)
    assert moved[-1] == (region.length, region.length)
    (use,) = image.uses
    assert use == DeviceUse(pid=program.pid, device_uuid=UUID.format(0), memory=program.memory)
    assert machine.device_files() == []
    holders = [each for each in read_maps(program.pid) if each.start <= region.start < each.end]
    assert [each.permissions for each in holders] == ["rw-p"]
    come_back(backend, program)


def test_uses_by_the_regions_where_nvml_lists_nobody(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    machine.set(nvml_hides_processes=1)
    program = start_locked(backend, machine)
    image = backend.gpusnap_checkpoint((program.pid,), ignore)
    (use,) = image.uses
    assert use.device_uuid == UUID.format(0)
    assert use.memory == sum(region.length for region in image.regions)


def test_several_processes_are_moved_at_once(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    programs = [start_locked(backend, machine, name) for name in ("one", "two")]
    pids = tuple(program.pid for program in programs)
    machine.set(checkpoint_hang=1)
    with ThreadPoolExecutor() as threads:
        moving = threads.submit(backend.gpusnap_checkpoint, pids, ignore)
        await_true(lambda: len(machine.calls_under_way()) == 2, "both are under way")
        machine.clear("checkpoint_hang")
        image = moving.result()
    assert {region.pid for region in image.regions} == set(pids)
    locked = dict.fromkeys(pids, DeviceState.LOCKED)
    assert backend.gpusnap_restore(pids, DeviceMap(), ignore) == locked
    backend.gpusnap_unlock(pids)
    assert [program.result() for program in programs] == [each.expected for each in programs]


def test_managed_memory(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    victim = machine.start_victim("managed")
    backend.gpusnap_lock((victim.pid,), LOCK_US)
    with pytest.raises(DeviceError) as caught:
        backend.gpusnap_checkpoint((victim.pid,), ignore)
    error = caught.value
    assert error.text == (
        f"Process {victim.pid} holds state the driver cannot checkpoint, such as managed memory "
        "(cudaMallocManaged) (CUDA_ERROR_NOT_SUPPORTED, 801)"
    )
    assert error.cure is not None
    assert error.state is DeviceState.LOCKED
    backend.gpusnap_unlock((victim.pid,))
    assert victim.computes()


def test_mig(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    machine.set(mig=1)
    program = start_locked(backend, machine)
    with pytest.raises(DeviceError) as caught:
        backend.gpusnap_checkpoint((program.pid,), ignore)
    assert caught.value.state is DeviceState.LOCKED
    assert caught.value.cure is not None
    assert "MIG" in caught.value.cure


def test_one_of_two_is_refused(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    program = start_locked(backend, machine)
    victim = machine.start_victim("managed")
    pids = (program.pid, victim.pid)
    backend.gpusnap_lock((victim.pid,), LOCK_US)
    with pytest.raises(DeviceError) as caught:
        backend.gpusnap_checkpoint(pids, ignore)
    assert caught.value.pid == victim.pid
    states = {program.pid: DeviceState.CHECKPOINTED, victim.pid: DeviceState.LOCKED}
    assert backend.gpusnap_state(pids) == states
    # The rollback by state: restore leaves alone what is not checkpointed.
    assert backend.gpusnap_restore(pids, DeviceMap(), ignore) == dict.fromkeys(
        pids, DeviceState.LOCKED
    )
    backend.gpusnap_unlock(pids)
    assert victim.computes()
    assert program.result() == program.expected


def test_checkpoint_of_a_process_that_is_not_locked(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    program = machine.start_program()
    with pytest.raises(DeviceError, match="ILLEGAL_STATE, 401") as caught:
        backend.gpusnap_checkpoint((program.pid,), ignore)
    assert caught.value.state is DeviceState.RUNNING
    assert program.computes()


def test_restore_leaves_running_processes_alone(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    program = machine.start_program()
    states = backend.gpusnap_restore((program.pid,), DeviceMap(), ignore)
    assert states == {program.pid: DeviceState.RUNNING}
    assert program.computes()


def test_restore_brings_back_the_others_of_a_process_that_is_gone(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    gone, program = (start_locked(backend, machine, name) for name in ("gone", "job"))
    pids = (gone.pid, program.pid)
    backend.gpusnap_checkpoint(pids, ignore)
    gone.process.kill()
    with pytest.raises(DeviceError, match=f"does not know process {gone.pid}"):
        backend.gpusnap_restore(pids, DeviceMap(), ignore)
    assert backend.gpusnap_state(pids) == {program.pid: DeviceState.LOCKED}
    come_back(backend, program)


def test_importer_of_another_process_memory(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    victim = machine.start_victim("importer")
    backend.gpusnap_lock((victim.pid,), LOCK_US)
    backend.gpusnap_checkpoint((victim.pid,), ignore)
    with pytest.raises(DeviceError, match="CUDA IPC") as caught:
        backend.gpusnap_restore((victim.pid,), DeviceMap(), ignore)
    assert "(CUDA_ERROR_INVALID_VALUE, 1)" in caught.value.text
    assert caught.value.state is DeviceState.CHECKPOINTED


def test_too_little_device_memory_spoils_every_later_restore(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    program = start_locked(backend, machine)
    backend.gpusnap_checkpoint((program.pid,), ignore)
    machine.set(memory_mib=0)
    for _ in range(2):
        with pytest.raises(DeviceError, match="OPERATING_SYSTEM, 304") as caught:
            backend.gpusnap_restore((program.pid,), DeviceMap(), ignore)
        assert caught.value.state is DeviceState.CHECKPOINTED
        machine.clear("memory_mib")


def test_devices_are_swapped_by_naming_all(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    machine.set(devices=2)
    program = start_locked(backend, machine)
    backend.gpusnap_checkpoint((program.pid,), ignore)
    swapped = DeviceMap(pairs=((UUID.format(0), UUID.format(1)), (UUID.format(1), UUID.format(0))))
    backend.gpusnap_restore((program.pid,), swapped, ignore)
    assert machine.device_files(0) == []
    assert len(machine.device_files(1)) == 1
    backend.gpusnap_unlock((program.pid,))
    assert program.result() == program.expected


def test_naming_some_devices_is_refused(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    machine.set(devices=2)
    program = start_locked(backend, machine)
    backend.gpusnap_checkpoint((program.pid,), ignore)
    half = DeviceMap(pairs=((UUID.format(0), UUID.format(1)),))
    with pytest.raises(DeviceError, match="devices were not all named"):
        backend.gpusnap_restore((program.pid,), half, ignore)
    come_back(backend, program)


def test_identical_pairs_need_no_naming(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    machine.set(devices=2)
    program = start_locked(backend, machine)
    backend.gpusnap_checkpoint((program.pid,), ignore)
    same = DeviceMap(
        pairs=((UUID.format(0), UUID.format(0)),)
    )  # the simulation refuses it as pairs
    backend.gpusnap_restore((program.pid,), same, ignore)
    backend.gpusnap_unlock((program.pid,))
    assert program.result() == program.expected


def test_checkpoint_that_never_returns(
    backend: NvidiaBackend, hasty: NvidiaBackend, machine: SimulatedMachine
) -> None:
    program = start_locked(hasty, machine)
    machine.set(checkpoint_hang=1)
    first_worker = hasty.worker.pid
    with pytest.raises(DeadlineError) as caught:
        hasty.gpusnap_checkpoint((program.pid,), ignore)
    assert f"for process {program.pid}" in caught.value.text
    assert f"Process {program.pid} is locked in the driver" in caught.value.details
    assert hasty.worker.pid not in {None, first_worker}
    machine.clear("checkpoint_hang")
    await_true(lambda: checkpointed(backend, program), "it is checkpointed")
    come_back(backend, program)


def test_restore_that_never_returns(
    backend: NvidiaBackend, hasty: NvidiaBackend, machine: SimulatedMachine
) -> None:
    program = start_locked(backend, machine)
    backend.gpusnap_checkpoint((program.pid,), ignore)
    machine.set(restore_hang=1)
    with pytest.raises(DeadlineError) as caught:
        hasty.gpusnap_restore((program.pid,), DeviceMap(), ignore)
    assert f"Process {program.pid} is checkpointed in the driver" in caught.value.details
    machine.clear("restore_hang")


def checkpointed(backend: NvidiaBackend, program: Program) -> bool:
    return backend.gpusnap_state((program.pid,)) == {program.pid: DeviceState.CHECKPOINTED}


def kill_when_begun(machine: SimulatedMachine, kill: Callable[[], None]) -> threading.Thread:
    """Kill someone in the middle of a checkpoint."""

    def wait_and_kill() -> None:
        await_true(lambda: machine.has("checkpoint_begun"), "the checkpoint begins")
        kill()

    killer = threading.Thread(target=wait_and_kill)
    killer.start()
    return killer


@pytest.mark.parametrize("transit_states", [0, 1])
def test_worker_killed_during_a_checkpoint(
    backend: NvidiaBackend, machine: SimulatedMachine, transit_states: int
) -> None:
    program = start_locked(backend, machine)
    machine.set(checkpoint_ms=60_000, transit_states=transit_states)
    worker = backend.worker.pid
    assert worker is not None

    def kill() -> None:
        os.kill(worker, signal.SIGKILL)
        machine.set(checkpoint_ms=600)

    killer = kill_when_begun(machine, kill)
    with pytest.raises(DeviceError, match=r"worker ended \(signal 9\)") as caught:
        backend.gpusnap_checkpoint((program.pid,), ignore)
    killer.join()
    # The driver went on by itself; the outcome is what it says, not what the call would have.
    assert caught.value.state is DeviceState.CHECKPOINTED
    come_back(backend, program)


def test_process_killed_during_a_checkpoint(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    program = start_locked(backend, machine)
    machine.set(checkpoint_ms=60_000)
    killer = kill_when_begun(machine, program.process.kill)
    with pytest.raises(DeviceError, match=f"could not reach process {program.pid}") as caught:
        backend.gpusnap_checkpoint((program.pid,), ignore)
    killer.join()
    assert caught.value.state is None
