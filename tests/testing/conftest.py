from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusnap.plugins import Backend, Plugins
from gpusnap.testing import Machine, create_machine
from gpusnap.testing.backend import backend as simulated
from tests.testing.running import Program, start_program

StartProgram = Callable[..., Program]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = create_machine(tmp_path / "machine", devices=2, memory=8 << 20)
    monkeypatch.setenv("GPUSNAP_SIM_DIR", str(machine.path))
    return machine


@pytest.fixture
def backend(machine: Machine) -> Backend:
    plugins = Plugins()
    # One for all tests, for its worker takes a moment to start.
    plugins.register(simulated, "simulated", is_backend=True)
    return plugins.backend("simulated")


@pytest.fixture
def start(machine: Machine, tmp_path: Path) -> Iterator[StartProgram]:
    programs: list[Program] = []

    def start(steps: int = 100_000, **options: object) -> Program:
        log = tmp_path / f"log-{len(programs)}"
        programs.append(start_program(machine, log, steps, **options))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()


@pytest.fixture
def program(start: StartProgram) -> Program:
    program = start()
    program.compute()
    return program
