"""Lock, checkpoint, criu dump, kill, criu restore, restore, unlock: with the real CRIU."""

from pathlib import Path

import pytest

from gpusnap.criu import DumpRequest, RestoreRequest, Session, search_criu
from gpusnap.errors import CriuError
from gpusnap.target import identity
from gpusnap.types import DeviceMap, DeviceState
from gpusnap_nvidia import NvidiaBackend
from tests.nvidia.machine import Program, SimulatedMachine, await_true, ignore
from tests.pids import kill

LOCK_US = 60_000_000
CRIU_US = 60_000_000


@pytest.fixture
def criu(root: None, tmp_path: Path) -> "Criu":
    found = search_criu().criu
    if found is None:
        pytest.fail("No CRIU that works: run gpusnap setup-criu")
    return Criu(Session(found), tmp_path)


class Criu:
    """Dumps into a folder and restores from it."""

    def __init__(self, session: Session, folder: Path) -> None:
        self._session = session
        self._images, self._work = folder / "images", folder / "work"
        self._images.mkdir()
        self._work.mkdir()

    def dump(self, pid: int) -> None:
        request = DumpRequest(
            pid=pid,
            images=self._images,
            work=self._work,
            leave_running=False,
            timeout_us=CRIU_US,
        )
        self._session.dump(request, lambda _stage, _pid: True)

    def restore(self) -> int:
        request = RestoreRequest(images=self._images, work=self._work, timeout_us=CRIU_US)
        return self._session.restore(request, lambda _stage, _pid: True)


def start_locked(backend: NvidiaBackend, machine: SimulatedMachine) -> Program:
    backend.gpusnap_probe()  # starts the worker, which may take longer than a program runs
    machine.set(kernel_ms=50)  # slow until it is locked
    program = machine.start_program(200)
    lock(backend, program.pid)
    machine.clear("kernel_ms")
    return program


def lock(backend: NvidiaBackend, pid: int) -> None:
    assert backend.gpusnap_lock((pid,), LOCK_US) == {pid: DeviceState.LOCKED}


def checkpoint(backend: NvidiaBackend, pid: int) -> None:
    image = backend.gpusnap_checkpoint((pid,), ignore)
    assert sum(region.length for region in image.regions) >= 1 << 20


def resume(backend: NvidiaBackend, pid: int) -> None:
    assert backend.gpusnap_restore((pid,), DeviceMap(), ignore) == {pid: DeviceState.LOCKED}
    assert backend.gpusnap_unlock((pid,)) == {pid: DeviceState.RUNNING}


def test_whole_cycle(backend: NvidiaBackend, machine: SimulatedMachine, criu: Criu) -> None:
    program = start_locked(backend, machine)
    pid = program.pid
    checkpoint(backend, pid)
    criu.dump(pid)
    program.process.kill()
    assert not machine.device_files()
    assert backend.gpusnap_state((pid,)) == {}
    lines = program.lines
    assert lines < program.steps

    assert criu.restore() == pid
    try:
        assert backend.gpusnap_state((pid,)) == {pid: DeviceState.CHECKPOINTED}
        assert backend.gpusnap_claim(program.target).pids == (pid,)
        assert program.lines == lines
        resume(backend, pid)
        assert program.result() == program.expected
    finally:
        kill_restored(pid)


def test_a_process_on_the_device_cannot_be_dumped(
    backend: NvidiaBackend, machine: SimulatedMachine, criu: Criu
) -> None:
    program = machine.start_program()
    with pytest.raises(CriuError):
        criu.dump(program.pid)
    assert program.computes()
    lock(backend, program.pid)
    checkpoint(backend, program.pid)
    criu.dump(program.pid)


def test_running_on_after_a_checkpoint(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    program = start_locked(backend, machine)
    checkpoint(backend, program.pid)
    assert program.stands_still()
    resume(backend, program.pid)
    assert program.result() == program.expected


def kill_restored(pid: int) -> None:
    if identity(pid) is not None:
        kill(pid)
    await_true(lambda: identity(pid) is None, "the restored process is gone")
