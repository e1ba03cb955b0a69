"""The backend on programs that compute, with and without trouble."""

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.errors import DeadlineError, DeviceError, NoBackendError
from gpusnap.plugins import Backend
from gpusnap.target import find_target
from gpusnap.testing import DeviceDescription, Machine, create_machine, fail
from gpusnap.testing.messages import has_request
from gpusnap.testing.program import reference_log
from gpusnap.types import (
    CriuPhase,
    DeviceMap,
    DeviceState,
    Engine,
    Operation,
)
from tests.testing.conftest import StartProgram
from tests.testing.running import SLOW, STEPS, Program, await_true

MIB = 1 << 20
SAME = DeviceMap()
SECOND = 1_000_000


def suspend(backend: Backend, *programs: Program) -> None:
    pids = tuple(program.pid for program in programs)
    backend.lock(pids, 10 * SECOND)
    backend.checkpoint(pids)


def resume(backend: Backend, *programs: Program, device_map: DeviceMap = SAME) -> None:
    pids = tuple(program.pid for program in programs)
    backend.restore(pids, device_map)
    assert set(backend.unlock(pids).values()) == {DeviceState.RUNNING}


def state(backend: Backend, program: Program) -> DeviceState:
    return backend.state(program.pids)[program.pid]


def test_result_is_that_of_an_uninterrupted_run(start: StartProgram, backend: Backend) -> None:
    program = start(STEPS, **SLOW)
    for _ in range(3):
        program.compute()
        suspend(backend, program)
        assert program.stands_still()
        resume(backend, program)
    assert program.finish() == reference_log(STEPS)


def test_image_says_what_was_where(backend: Backend, start: StartProgram) -> None:
    program = start(memory=3 * MIB, device=1)
    program.compute()
    backend.lock(program.pids, 10 * SECOND)
    seen: list[tuple[int, int]] = []
    image = backend.checkpoint(program.pids, lambda done, total: seen.append((done, total)))
    (use,) = image.uses
    assert (use.pid, use.memory) == (program.pid, 3 * MIB)
    assert use.device_uuid == backend.devices()[1].uuid
    assert 3 * MIB <= sum(region.length for region in image.regions) < 6 * MIB
    assert seen == [(0, 3 * MIB), (3 * MIB, 3 * MIB)]
    assert backend.devices()[1].memory_free == 8 * MIB
    assert backend.processes() == ()


def test_busy_program_runs_on(machine: Machine, backend: Backend, tmp_path: Path) -> None:
    busy, under_way = tmp_path / "busy", tmp_path / "under-way"
    code = f"""
import pathlib, time
from gpusnap.testing.device import SimulatedDevice
busy, under_way = map(pathlib.Path, ({str(busy)!r}, {str(under_way)!r}))
device = SimulatedDevice.open()
buffer = device.allocate(4096)
def kernel(memory):
    time.sleep(0.01)
    while busy.exists():
        under_way.touch()
        time.sleep(0.01)
with open({str(tmp_path / "log")!r}, "ab", buffering=0) as log:
    while True:
        device.launch(kernel, buffer)
        log.write(b"step\\n")
"""
    program = Program(machine, tmp_path / "log", "-c", code)
    try:
        program.compute(1)
        busy.touch()
        await_true(under_way.exists, "the kernel that lasts")
        with pytest.raises(DeadlineError, match=r"still has device work under way after 0\.02 s"):
            backend.lock(program.pids, SECOND // 50)
        assert state(backend, program) is DeviceState.RUNNING
        busy.unlink()
        program.compute(1)
        backend.lock(program.pids, 10 * SECOND)
        assert program.stands_still()
    finally:
        program.kill()


def test_one_busy_program_lets_all_run_on(backend: Backend, start: StartProgram) -> None:
    programs = [start(), start(), start()]
    for program in programs:
        program.compute()
    pids = tuple(program.pid for program in programs)
    fail(os.environ["GPUSNAP_SIM_DIR"], "lock", "busy", pid=pids[1])
    with pytest.raises(DeadlineError, match=f"Process {pids[1]} still has device work"):
        backend.lock(pids, 10 * SECOND)
    assert backend.state(pids) == dict.fromkeys(pids, DeviceState.RUNNING)
    for program in programs:
        program.compute()


@pytest.mark.parametrize("kind", ["unsupported", "out-of-memory"])
def test_refused_checkpoint(
    machine: Machine, backend: Backend, program: Program, kind: str
) -> None:
    backend.lock(program.pids, 10 * SECOND)
    fail(machine, "checkpoint", kind)
    with pytest.raises(DeviceError) as caught:
        backend.checkpoint(program.pids)
    assert caught.value.pid == program.pid
    assert caught.value.state is DeviceState.LOCKED
    backend.unlock(program.pids)
    program.compute()


@pytest.mark.parametrize("kind", ["unsupported", "out-of-memory"])
def test_refused_restore(machine: Machine, backend: Backend, program: Program, kind: str) -> None:
    suspend(backend, program)
    fail(machine, "restore", kind)
    with pytest.raises(DeviceError) as caught:
        backend.restore(program.pids, SAME)
    assert caught.value.state is DeviceState.CHECKPOINTED
    resume(backend, program)
    program.compute()


def test_device_full_at_restore(backend: Backend, start: StartProgram) -> None:
    program = start(memory=6 * MIB)
    program.compute()
    suspend(backend, program)
    other = start(memory=4 * MIB)
    other.compute()
    findings = backend.preflight(find_target(program.pid), program.pids, Operation.RESUME)
    assert [finding.code for finding in findings] == ["device-memory-free"]
    with pytest.raises(DeviceError, match=f"{4 * MIB} bytes free, {6 * MIB} are needed"):
        backend.restore(program.pids, SAME)
    assert state(backend, program) is DeviceState.CHECKPOINTED
    other.kill()
    resume(backend, program)
    program.compute()


@contextlib.contextmanager
def hasty(machine: Machine) -> Iterator[None]:
    """Have calls given up soon."""
    devices = machine.description.devices
    create_machine(machine.path, devices=devices, call_timeout_us=2 * SECOND)
    yield
    create_machine(machine.path, devices=devices)


@pytest.mark.parametrize(
    ("kind", "afterwards"),
    [("hang", DeviceState.LOCKED), ("lost-answer", DeviceState.CHECKPOINTED)],
)
def test_checkpoint_that_never_returns(
    machine: Machine, backend: Backend, program: Program, kind: str, afterwards: DeviceState
) -> None:
    backend.lock(program.pids, 10 * SECOND)
    fail(machine, "checkpoint", kind)
    late = f"did not answer a checkpoint call .*{program.pid}"
    with hasty(machine), pytest.raises(DeadlineError, match=late):
        backend.checkpoint(program.pids)
    await_true(lambda: state(backend, program) is afterwards, str(afterwards))
    resume(backend, program)
    program.compute()


def test_lock_that_never_returns(machine: Machine, backend: Backend, start: StartProgram) -> None:
    programs = [start(), start()]
    for program in programs:
        program.compute()
    pids = tuple(program.pid for program in programs)
    fail(machine, "lock", "lost-answer", pid=pids[0])
    with hasty(machine), pytest.raises(DeadlineError):
        backend.lock(pids, SECOND // 10)
    running = dict.fromkeys(pids, DeviceState.RUNNING)
    await_true(lambda: backend.state(pids) == running, "both are unlocked")
    for program in programs:
        program.compute()


@pytest.mark.parametrize("operation", ["restore", "unlock"])
def test_way_back_that_never_returns(
    machine: Machine, backend: Backend, program: Program, operation: str
) -> None:
    suspend(backend, program)
    if operation == "unlock":
        backend.restore(program.pids, SAME)
    fail(machine, operation, "hang")
    with hasty(machine), pytest.raises(DeadlineError):
        resume(backend, program)
    resume(backend, program)
    program.compute()


def test_stopped_program_is_not_locked_later(
    machine: Machine, backend: Backend, program: Program
) -> None:
    program.stop()
    with hasty(machine), pytest.raises(DeadlineError, match="takes no driver calls"):
        backend.lock(program.pids, SECOND // 10)
    os.kill(program.pid, signal.SIGCONT)
    program.compute()
    assert state(backend, program) is DeviceState.RUNNING


@pytest.mark.parametrize("stopped", [False, True], ids=["taken", "waiting"])
def test_program_killed_during_a_call(
    machine: Machine, backend: Backend, program: Program, stopped: bool
) -> None:
    backend.lock(program.pids, 10 * SECOND)
    if stopped:
        program.stop()
    else:
        fail(machine, "checkpoint", "hang")

    def under_way() -> bool:
        if stopped:
            return has_request(machine.process_folder(program.pid))
        return not any((machine.path / "failures").iterdir())

    def kill() -> None:
        await_true(under_way, "the call")
        os.kill(program.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(DeviceError, match=f"Process {program.pid} ended during") as caught:
        backend.checkpoint(program.pids)
    killer.join()
    assert caught.value.state is None
    assert backend.state(program.pids) == {}


def test_calls_out_of_turn(backend: Backend, program: Program) -> None:
    with pytest.raises(DeviceError, match="is running, it would have to be locked"):
        backend.checkpoint(program.pids)
    suspend(backend, program)
    with pytest.raises(DeviceError, match="is checkpointed, it would have to be running"):
        backend.lock(program.pids, 10 * SECOND)
    with pytest.raises(DeviceError, match="is checkpointed, it would have to be locked"):
        backend.unlock(program.pids)
    assert state(backend, program) is DeviceState.CHECKPOINTED


def uuids(backend: Backend) -> list[str]:
    return [device.uuid for device in backend.devices()]


def on_devices(backend: Backend, program: Program) -> set[str]:
    return {each.device_uuid for each in backend.processes() if each.pid == program.pid}


def test_two_programs_change_places(backend: Backend, start: StartProgram) -> None:
    programs = [start(STEPS, memory=6 * MIB, device=index, **SLOW) for index in range(2)]
    first, second = uuids(backend)
    for program in programs:
        program.compute()
    suspend(backend, *programs)
    swap = DeviceMap(pairs=((first, second), (second, first)))
    resume(backend, *programs, device_map=swap)
    assert [on_devices(backend, program) for program in programs] == [{second}, {first}]
    for program in programs:
        assert program.finish() == reference_log(STEPS, 6 * MIB)


def test_program_comes_back_on_another_machine(
    machine: Machine, backend: Backend, start: StartProgram
) -> None:
    program = start(STEPS, **SLOW)
    program.compute()
    saved = backend.devices()
    suspend(backend, program)
    create_machine(machine.path, devices=[DeviceDescription(uuid=uuid) for uuid in "xy"])
    with pytest.raises(DeviceError, match="no device"):
        backend.restore(program.pids, SAME)
    assert state(backend, program) is DeviceState.CHECKPOINTED
    moves = DeviceMap(pairs=((saved[0].uuid, "x"), (saved[1].uuid, "y")))
    resume(backend, program, device_map=moves)
    assert on_devices(backend, program) == {"x"}
    assert program.finish() == reference_log(STEPS)


def codes(backend: Backend, program: Program, operation: Operation) -> list[str]:
    target = find_target(program.pid)
    return [finding.code for finding in backend.preflight(target, program.pids, operation)]


def test_preflight_reads_states(backend: Backend, program: Program) -> None:
    assert codes(backend, program, Operation.CHECKPOINT) == []
    assert codes(backend, program, Operation.RESUME) == ["device-not-checkpointed"]
    suspend(backend, program)
    assert codes(backend, program, Operation.CHECKPOINT) == ["device-not-running"]
    assert codes(backend, program, Operation.SUSPEND) == ["device-not-running"]
    assert codes(backend, program, Operation.RESUME) == []


def test_preflight_of_a_stranger(
    backend: Backend, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpusnap.testing.driver._REGISTER_SECONDS", 0.1)
    (finding,) = backend.preflight(find_target(program.pid), (1,), Operation.CHECKPOINT)
    assert (finding.code, finding.pid) == ("device-unknown-process", 1)


def test_preflight_compares_host_memory(
    backend: Backend, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Little:
        available = MIB - 1

    monkeypatch.setattr("psutil.virtual_memory", Little)
    assert codes(backend, program, Operation.CHECKPOINT) == ["host-memory"]


def test_lost_device_state_is_seen(machine: Machine, backend: Backend, program: Program) -> None:
    backend.lock(program.pids, 10 * SECOND)
    shutil.rmtree(machine.path / "memory")
    with pytest.raises(DeviceError):  # the program may end before it has answered
        backend.unlock(program.pids)
    await_true(lambda: program.process.poll() is not None, "the program's end")
    assert program.process.returncode == 1
    assert "is lost" in program.errors.read_text()


def test_criu_needs_nothing(backend: Backend) -> None:
    options = backend.criu_options(CriuPhase.DUMP, Engine.DRIVER)
    assert options.plugin_directory is None
    with pytest.raises(NoBackendError, match="no CRIU plugin"):
        backend.criu_options(CriuPhase.DUMP, Engine.CRIU_PLUGIN)


def test_call_gives_up_soon_enough(machine: Machine, backend: Backend, program: Program) -> None:
    backend.lock(program.pids, 10 * SECOND)
    fail(machine, "checkpoint", "hang")
    begin = time.monotonic()
    with hasty(machine), pytest.raises(DeadlineError):
        backend.checkpoint(program.pids)
    assert time.monotonic() - begin < 15, "unless told, a machine's calls get 20 s"
