"""The backend's real code against the simulated driver."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap_nvidia import NvidiaBackend
from gpusnap_nvidia.calls import Deadlines
from tests.nvidia.machine import SimulatedMachine, build_libraries

PATIENT = Deadlines(answer_us=60_000_000, move_us=60_000_000)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    build_libraries(folder)
    return folder


@pytest.fixture
def machine(
    tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SimulatedMachine]:
    machine = SimulatedMachine(tmp_path, libraries)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    yield machine
    machine.close()


@pytest.fixture
def backend(machine: SimulatedMachine) -> Iterator[NvidiaBackend]:
    backend = NvidiaBackend(PATIENT)
    yield backend
    backend.close()


@pytest.fixture
def hasty(machine: SimulatedMachine) -> Iterator[NvidiaBackend]:
    """A backend that soon gives up a move."""
    backend = NvidiaBackend(Deadlines(answer_us=60_000_000, move_us=1_000_000))
    yield backend
    backend.close()


@pytest.fixture
def curt(machine: SimulatedMachine) -> Iterator[NvidiaBackend]:
    """A backend that soon gives up an answer."""
    backend = NvidiaBackend(Deadlines(answer_us=5_000_000))
    # The start of its worker counts to no later deadline
    backend.worker.call("driver_version", deadline_us=PATIENT.answer_us)
    yield backend
    backend.close()
