from pathlib import Path

import pytest

from gpusnap_amd import AmdBackend
from tests.amd.invented import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def backend(machine: Machine) -> AmdBackend:
    return AmdBackend(machine.sysfs, machine.proc)
