from gpusnap.target import find_target
from gpusnap.types import DeviceState
from gpusnap_nvidia import NvidiaBackend
from tests.nvidia.machine import SimulatedMachine


def test_a_process_that_computes(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    program = machine.start_program()
    claim = backend.gpusnap_claim(program.target)
    assert claim.pids == (program.pid,)
    assert claim.reason == "1 of 1 processes have a CUDA restore thread"


def test_a_process_without_the_driver(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    sleeper = machine.start("-c", "import time; time.sleep(600)")
    assert backend.gpusnap_claim(sleeper.target).pids == ()
    assert backend.gpusnap_state((sleeper.pid,)) == {}


def test_a_forked_child_is_not_claimed_although_the_driver_has_a_state_for_it(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    victim = machine.start_victim("forking")
    parent, child = find_target(victim.pid).pids
    assert backend.gpusnap_state((child,)) == {child: DeviceState.RUNNING}
    claim = backend.gpusnap_claim(victim.target)
    assert claim.pids == (parent,)
    assert claim.reason == "1 of 2 processes have a CUDA restore thread"


def test_a_process_that_is_gone(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    program = machine.start_program()
    target = program.target
    program.process.kill()
    assert backend.gpusnap_claim(target).pids == ()
