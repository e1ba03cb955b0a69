import os
import subprocess
import threading
import time
from typing import Any

import pytest

from gpusnap.errors import DeadlineError, DeviceError
from gpusnap.types import DeviceState
from gpusnap.worker import Worker, WorkerError
from gpusnap_nvidia import NvidiaBackend, lock
from gpusnap_nvidia.calls import CallFailed
from tests.nvidia.machine import SimulatedMachine, await_true

LOCK_US = 60_000_000


def test_lock_and_unlock(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    program = machine.start_program()
    assert backend.gpusnap_lock((program.pid,), LOCK_US) == {program.pid: DeviceState.LOCKED}
    assert backend.gpusnap_state((program.pid,)) == {program.pid: DeviceState.LOCKED}
    assert program.stands_still()
    assert backend.gpusnap_unlock((program.pid,)) == {program.pid: DeviceState.RUNNING}
    assert program.computes()


def test_unlock_of_a_running_process_is_nothing(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    program = machine.start_program()
    assert backend.gpusnap_unlock((program.pid,)) == {program.pid: DeviceState.RUNNING}
    assert program.computes()


def test_work_that_outlasts_the_timeout(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    program = machine.start_program()
    machine.set(kernel_ms=600_000)
    await_true(program.stands_still, "a long kernel is under way")
    with pytest.raises(DeadlineError, match="still had device work under way") as caught:
        backend.gpusnap_lock((program.pid,), 200_000)
    assert "(CUDA_ERROR_NOT_READY, 600)" in caught.value.text
    assert f"Process {program.pid} is running in the driver" in caught.value.details
    machine.clear("kernel_ms")
    assert program.computes()


def test_work_that_ends_in_time(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    program = machine.start_program()
    machine.set(kernel_ms=300)
    lines = program.lines
    program.process.await_true(lambda: program.lines > lines + 1, "a long kernel")
    assert backend.gpusnap_lock((program.pid,), LOCK_US) == {program.pid: DeviceState.LOCKED}


def test_ranks_that_wait_for_each_other_are_let_go_and_locked_again(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    programs = [machine.start_program(name=name) for name in ("one", "two", "three")]
    pids = tuple(program.pid for program in programs)
    machine.set(busy_locks=2)
    assert backend.gpusnap_lock(pids, LOCK_US) == dict.fromkeys(pids, DeviceState.LOCKED)
    assert backend.gpusnap_state(pids) == dict.fromkeys(pids, DeviceState.LOCKED)


def test_tries_are_bounded_and_all_run_again(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    programs = [machine.start_program(name=name) for name in ("one", "two")]
    pids = tuple(program.pid for program in programs)
    machine.set(busy_locks=1000)
    with pytest.raises(DeadlineError):
        backend.gpusnap_lock(pids, LOCK_US)
    assert backend.gpusnap_state(pids) == dict.fromkeys(pids, DeviceState.RUNNING)
    assert all(program.computes() for program in programs)
    left = int((machine.folder / "simcuda" / "control" / "busy-locks").read_text())
    assert lock.ATTEMPTS <= 1000 - left <= lock.ATTEMPTS * 2


def test_all_or_nothing(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    first, second = (machine.start_program(name=name) for name in ("one", "two"))
    backend.gpusnap_lock((second.pid,), LOCK_US)
    with pytest.raises(DeviceError) as caught:
        backend.gpusnap_lock((first.pid, second.pid), LOCK_US)
    assert caught.value.pid == second.pid
    assert caught.value.state is DeviceState.LOCKED
    assert isinstance(caught.value, CallFailed)
    assert caught.value.code == 401
    # What this call locked runs again, what another had locked is left as it was.
    assert first.computes()
    assert backend.gpusnap_state((second.pid,)) == {second.pid: DeviceState.LOCKED}


def test_a_refused_lock_names_code_and_process(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    program = machine.start_program()
    machine.set(lock_error=999)
    with pytest.raises(DeviceError) as caught:
        backend.gpusnap_lock((program.pid,), LOCK_US)
    assert caught.value.text == (
        f"The driver refused the lock of process {program.pid} (CUDA_ERROR_UNKNOWN, 999)"
    )
    assert caught.value.state is DeviceState.RUNNING


def test_a_lock_that_never_returns_leaves_the_process_running(
    curt: NvidiaBackend, machine: SimulatedMachine
) -> None:
    programs = [machine.start_program(name=name) for name in ("one", "two")]
    pids = tuple(program.pid for program in programs)
    machine.set(lock_hang=1)
    with pytest.raises(DeadlineError, match="did not answer a lock call within"):
        curt.gpusnap_lock(pids, 100_000)
    machine.clear("lock_hang")
    assert all(program.computes() for program in programs)


def test_a_lock_that_comes_too_late_is_taken_back(
    curt: NvidiaBackend, machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = machine.start_program()
    call = curt.worker.call

    def wait_for_the_worker(method: str, /, *, deadline_us: int, **arguments: object) -> object:
        return call(method, deadline_us=20 * deadline_us, **arguments)

    def come_late() -> None:
        await_true(lambda: bool(machine.calls_under_way()), "the lock is asked for")
        time.sleep(3)  # the worker gives it 2.6 s
        machine.clear("lock_hang")

    monkeypatch.setattr(curt.worker, "call", wait_for_the_worker)
    machine.set(lock_hang=1)
    late = threading.Thread(target=come_late)
    late.start()
    with pytest.raises(DeadlineError, match="came too late and was taken back"):
        curt.gpusnap_lock((program.pid,), 100_000)
    late.join()
    assert program.computes()
    assert curt.gpusnap_state((program.pid,)) == {program.pid: DeviceState.RUNNING}


def test_a_lock_that_is_begun_too_late_is_taken_back(
    curt: NvidiaBackend, machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = machine.start_program()
    call = curt.worker.call

    def reach_the_worker_late(method: str, /, **arguments: Any) -> object:
        time.sleep(3 if method == "lock" else 0)  # the worker has 2.6 s
        return call(method, **arguments)

    monkeypatch.setattr(curt.worker, "call", reach_the_worker_late)
    with pytest.raises(DeadlineError, match="came too late and was taken back"):
        curt.gpusnap_lock((program.pid,), 100_000)
    assert program.computes()


def test_unlock_names_a_process_the_driver_lost(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    first, second = (machine.start_program(name=name) for name in ("one", "two"))
    backend.gpusnap_lock((first.pid, second.pid), LOCK_US)
    first.process.kill()
    with pytest.raises(DeviceError, match=f"no longer knows process {first.pid}"):
        backend.gpusnap_unlock((first.pid, second.pid))
    assert second.computes()


def test_the_caller_of_a_lock_may_die(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    program = machine.start_program()
    backend.gpusnap_lock((program.pid,), LOCK_US)
    backend.close()
    await_true(lambda: backend.worker.pid is None, "the worker has ended")
    assert backend.gpusnap_state((program.pid,)) == {program.pid: DeviceState.LOCKED}
    backend.gpusnap_unlock((program.pid,))
    assert program.computes()


def test_who_lives_and_cannot_be_reached_is_not_taken_for_gone(
    backend: NvidiaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **_more: object) -> None:
        answer = [304, "CUDA_ERROR_OPERATING_SYSTEM", "cuCheckpointProcessGetState"]
        raise WorkerError("refused", kind="CudaError", value=list[object](answer))

    monkeypatch.setattr(Worker, "call", refuse)
    with subprocess.Popen(["true"]) as ended:
        pass
    assert backend.gpusnap_state((ended.pid,)) == {}
    with pytest.raises(DeviceError, match=f"could not reach process {os.getpid()}"):
        backend.gpusnap_state((os.getpid(), ended.pid))
