"""Trees of several processes on several GPUs, and their way to other GPUs."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpusnap.errors import DeviceError
from gpusnap.types import DeviceMap, DeviceState
from gpusnap_nvidia import NvidiaBackend
from tests.nvidia.machine import Program, SimulatedMachine, await_true, ignore

LOCK_US = 60_000_000


@pytest.fixture
def ranks(backend: NvidiaBackend, machine: SimulatedMachine) -> tuple[Program, Program]:
    """Two processes, each checkpointed off a GPU of its own."""
    machine.set(devices=2, kernel_ms=250)  # slow until they are saved
    first, second = (machine.start_program(200, name=f"rank{at}", device=at) for at in (0, 1))
    backend.gpusnap_lock((first.pid, second.pid), LOCK_US)
    backend.gpusnap_checkpoint((first.pid, second.pid), ignore)
    machine.clear("kernel_ms")
    return first, second


def pids_of(ranks: tuple[Program, ...]) -> tuple[int, ...]:
    return tuple(rank.pid for rank in ranks)


def swap(backend: NvidiaBackend) -> DeviceMap:
    first, second = (device.uuid for device in backend.gpusnap_devices())
    return DeviceMap(pairs=((first, second), (second, first)))


def test_ranks_change_places_at_once(
    backend: NvidiaBackend, machine: SimulatedMachine, ranks: tuple[Program, ...]
) -> None:
    pids = pids_of(ranks)
    assert machine.device_files(0) == machine.device_files(1) == []
    machine.set(restore_hang=1)
    with ThreadPoolExecutor() as threads:
        moving = threads.submit(backend.gpusnap_restore, pids, swap(backend), ignore)
        await_true(lambda: len(machine.calls_under_way()) == 2, "both are under way")
        machine.clear("restore_hang")
        assert moving.result() == dict.fromkeys(pids, DeviceState.LOCKED)
    places = {use.pid: use.device_uuid for use in backend.gpusnap_processes()}
    uuids = [device.uuid for device in backend.gpusnap_devices()]
    assert places == {pids[0]: uuids[1], pids[1]: uuids[0]}
    backend.gpusnap_unlock(pids)
    assert [rank.result() for rank in ranks] == [rank.expected for rank in ranks]


def test_a_rank_that_fails_on_its_new_gpu_keeps_no_other_back(
    backend: NvidiaBackend, machine: SimulatedMachine, ranks: tuple[Program, ...]
) -> None:
    pids = pids_of(ranks)
    ranks[1].process.kill()
    with pytest.raises(DeviceError, match=f"does not know process {pids[1]}"):
        backend.gpusnap_restore(pids, swap(backend), ignore)
    assert backend.gpusnap_state(pids) == {pids[0]: DeviceState.LOCKED}
    assert len(machine.device_files(1)) == 1
    backend.gpusnap_unlock(pids[:1])
    assert ranks[0].result() == ranks[0].expected


def gpusnap(machine: SimulatedMachine, *arguments: object) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "gpusnap", *map(str, arguments)],
        env={
            **os.environ,
            **machine.environment,
            "GPUSNAP_STATE_DIR": str(machine.folder / "state"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.returncode in {0, 3}, run.stderr
    return run.stderr


@pytest.mark.usefixtures("root")
def test_the_driver_hears_of_all_gpus(machine: SimulatedMachine) -> None:
    """The simulated driver refuses a map that does not name every GPU, as the real one does."""
    machine.set(devices=3)
    program = machine.start_program()
    gpusnap(machine, "suspend", program.pid)
    assert machine.device_files(0) == []
    told = gpusnap(machine, "resume", program.pid, "--device-map", "0=2")
    assert "device-map-stale" in told
    assert len(machine.device_files(2)) == 1
    assert program.computes()
