"""gpusnap as a user runs it, on the simulated driver and with the real CRIU."""

import os
import subprocess
import sys

import pytest

from gpusnap.repository import Repository
from gpusnap.target import alive
from tests.nvidia.machine import Program, SimulatedMachine, await_true


@pytest.fixture
def machine(machine: SimulatedMachine, root: None) -> SimulatedMachine:
    machine.environment |= {
        "GPUSNAP_REPO": str(machine.folder / "repository"),
        "GPUSNAP_STATE_DIR": str(machine.folder / "state"),
    }
    machine.set(kernel_ms=300)  # the command line takes longer to start than programs run
    return machine


def gpusnap(machine: SimulatedMachine, *arguments: str, expect: int = 0) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "gpusnap", *arguments],
        env={**os.environ, **machine.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.returncode == expect, run.stderr
    return run.stdout + run.stderr


def gone(program: Program) -> bool:
    found = program.process.identity
    return found is None or not alive(found)


def test_kill_and_restore(machine: SimulatedMachine) -> None:
    program = machine.start_program(200)
    pid = program.pid
    gpusnap(machine, "checkpoint", "--kill", str(pid), "--name", "one")
    program.process.kill()  # reaps it: it was killed already
    assert machine.device_files() == []
    saved = Repository.open(machine.folder / "repository").find("one").manifest
    assert (saved.backend, saved.claimed) == ("nvidia", (pid,))
    assert saved.driver_version == "580.00.01"
    assert [device.model for device in saved.devices] == ["Simulated H200"]
    gpusnap(machine, "restore", "one")
    machine.clear("kernel_ms")
    await_true(lambda: gone(program), "the restored program ends")
    assert program.log.read_text() == program.expected


def test_managed_memory_is_refused_and_the_process_runs_on(machine: SimulatedMachine) -> None:
    victim = machine.start_victim("managed")
    told = gpusnap(machine, "checkpoint", "--kill", str(victim.pid), expect=16)
    assert "managed memory" in told
    assert victim.computes()
    assert Repository.open(machine.folder / "repository").snapshots() == ()


def test_another_driver_is_refused_before_anything_starts(machine: SimulatedMachine) -> None:
    program = machine.start_program(200)
    gpusnap(machine, "checkpoint", "--kill", str(program.pid), "--name", "one")
    program.process.kill()
    machine.set(driver_branch=590)
    told = gpusnap(machine, "restore", "one", expect=14)
    assert "590.00.01" in told
    assert "580.00.01" in told
    assert gone(program)
