"""The AMD backend on the conformance suite, on an invented machine."""

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpusnap.testing.conformance import BackendConformance, StartProcess
from gpusnap_amd import AmdBackend
from tests.amd.invented import Machine


class Program:
    """A process that the invented KFD lists, and that nobody stops: each look sees a step."""

    def __init__(self, machine: Machine) -> None:
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self.pid = self.process.pid
        self._steps = itertools.count()
        machine.add_kfd_process(self.pid, {1: 4 << 20, 2: 0})

    def steps(self) -> int:
        return next(self._steps)


class TestAmdBackend(BackendConformance):
    @pytest.fixture
    def backend(self, machine: Machine) -> object:
        for node in (1, 2):
            machine.add_gpu(node, used=node << 30, unique_id=node, location_id=node << 8)
        return AmdBackend(machine.sysfs, machine.proc)

    @pytest.fixture
    def start_process(self, machine: Machine) -> Iterator[StartProcess]:
        programs: list[Program] = []

        def start() -> Program:
            programs.append(Program(machine))
            return programs[-1]

        yield start
        for program in programs:
            program.process.communicate()
