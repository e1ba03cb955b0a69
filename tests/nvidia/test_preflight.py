from types import SimpleNamespace

import psutil
import pytest

from gpusnap.types import Finding, Operation, Severity
from gpusnap_nvidia import NvidiaBackend
from gpusnap_nvidia.nccl import shared_transport
from gpusnap_nvidia.results import NCCL_CURE
from gpusnap_nvidia.uses import Use
from tests.nvidia.machine import Program, SimulatedMachine, await_true, ignore

LOCK_US = 60_000_000
SAVING = [Operation.CHECKPOINT, Operation.SUSPEND]


def check(backend: NvidiaBackend, program: Program, operation: Operation) -> dict[str, Finding]:
    found = backend.gpusnap_preflight(program.target, (program.pid,), operation)
    return {finding.code: finding for finding in found}


@pytest.mark.parametrize("operation", SAVING)
def test_nothing_to_say(
    backend: NvidiaBackend, machine: SimulatedMachine, operation: Operation
) -> None:
    assert check(backend, machine.start_program(), operation) == {}


@pytest.mark.parametrize("operation", SAVING)
def test_locked_already(
    backend: NvidiaBackend, machine: SimulatedMachine, operation: Operation
) -> None:
    program = machine.start_program()
    backend.gpusnap_lock((program.pid,), LOCK_US)
    finding = check(backend, program, operation)["device-not-running"]
    assert finding.severity is Severity.ERROR
    assert finding.text == f"Process {program.pid} is locked in the driver, not running"
    assert finding.pid == program.pid
    assert finding.cure == "Run gpusnap recover"


def test_resume_needs_a_checkpointed_process(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    program = machine.start_program()
    assert "device-not-checkpointed" in check(backend, program, Operation.RESUME)
    backend.gpusnap_lock((program.pid,), LOCK_US)
    backend.gpusnap_checkpoint((program.pid,), ignore)
    assert check(backend, program, Operation.RESUME) == {}
    cure = check(backend, program, Operation.SUSPEND)["device-not-running"].cure
    assert cure == f"Run gpusnap resume {program.pid} if it was suspended, else gpusnap recover"


def test_a_process_the_driver_does_not_know(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    program = machine.start_program()
    target = program.target
    program.process.kill()
    found = backend.gpusnap_preflight(target, (program.pid,), Operation.CHECKPOINT)
    assert [finding.code for finding in found] == ["device-unknown-process"]


def test_mig(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    machine.set(mig=1)
    finding = check(backend, machine.start_program(), Operation.CHECKPOINT)["nvidia-mig"]
    assert finding.severity is Severity.ERROR
    assert finding.cure == "Turn MIG off: nvidia-smi -i 0 -mig 0"


def test_persistence_mode(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    machine.set(no_persistence=1)
    finding = check(backend, machine.start_program(), Operation.CHECKPOINT)["nvidia-persistence"]
    assert finding.severity is Severity.INFO


def test_old_driver(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    machine.set(driver_branch=570)
    finding = check(backend, machine.start_program(), Operation.CHECKPOINT)["nvidia-driver-old"]
    assert finding.severity is Severity.WARNING


def test_mps(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    machine.set(mps=1)
    finding = check(backend, machine.start_program(), Operation.CHECKPOINT)["nvidia-mps"]
    assert finding.severity is Severity.ERROR


def test_host_memory(
    backend: NvidiaBackend, machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = machine.start_program(memory=2 << 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2 << 20))
    assert check(backend, program, Operation.CHECKPOINT) == {}
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=(2 << 20) - 1))
    assert check(backend, program, Operation.RESUME).keys() == {"device-not-checkpointed"}
    finding = check(backend, program, Operation.CHECKPOINT)["host-memory"]
    assert finding.severity is Severity.ERROR


class Ranks:
    """Processes that map a file called like NCCL's library."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._library = machine.folder / "libnccl.so.2"
        self._library.write_bytes(bytes(4096))

    def start(self, **variables: str) -> int:
        ready = self._machine.folder / "ready"
        ready.unlink(missing_ok=True)
        code = (
            "import mmap, pathlib, time; file = open("
            f"{str(self._library)!r}, 'rb');"
            "view = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ);"
            f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
        )
        self._machine.environment.update(variables)
        rank = self._machine.start("-c", code)
        for name in variables:
            del self._machine.environment[name]
        await_true(ready.exists, "the rank maps the library")
        return rank.pid


@pytest.fixture
def ranks(machine: SimulatedMachine) -> Ranks:
    return Ranks(machine)


SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_IB_DISABLE": "1",
}


def uses(*pids: int) -> tuple[Use, ...]:
    return tuple(Use(pid=pid, device_uuid="GPU-a", memory=1) for pid in pids)


def test_ranks_over_nvlink_are_refused(ranks: Ranks) -> None:
    pids = (ranks.start(), ranks.start(NCCL_P2P_DISABLE="1"))
    first, second = shared_transport(pids, uses(*pids))
    assert (first.code, first.severity, first.pid) == ("nccl-transport", Severity.ERROR, pids[0])
    assert "NCCL_P2P_DISABLE=1" in first.text
    assert "NCCL_P2P_DISABLE=1" not in second.text
    assert "NCCL_SHM_DISABLE=1" in second.text
    assert first.cure == NCCL_CURE


def test_ranks_over_sockets_are_fine(ranks: Ranks) -> None:
    pids = (ranks.start(**SOCKETS), ranks.start(**SOCKETS))
    assert tuple(shared_transport(pids, uses(*pids))) == ()


def test_a_rank_alone_shares_nothing(ranks: Ranks) -> None:
    pid = ranks.start()
    assert tuple(shared_transport((pid,), uses(pid))) == ()


def test_a_launcher_without_device_memory_is_no_rank(ranks: Ranks) -> None:
    launcher, rank = ranks.start(), ranks.start()
    assert tuple(shared_transport((launcher, rank), uses(rank))) == ()


def test_programs_without_nccl_share_nothing(machine: SimulatedMachine) -> None:
    pids = tuple(machine.start_program(name=name).pid for name in ("one", "two"))
    assert tuple(shared_transport(pids, uses(*pids))) == ()
