import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusnap.testing import Machine
from gpusnap.testing.program import count_steps, reference_log
from tests.testing.conftest import StartProgram
from tests.testing.running import Program


def test_log_is_the_reference(start: StartProgram) -> None:
    program = start(20, **{"step-us": 0})
    assert program.finish() == reference_log(20)
    assert program.steps() == 20


def test_other_memory_is_another_result(start: StartProgram) -> None:
    program = start(5, **{"memory": 8192, "device": 1, "step-us": 0})
    assert program.finish() == reference_log(5, 8192)
    assert reference_log(5, 8192) != reference_log(5, 4096)


def test_every_byte_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = reference_log(3)
    assert reference_log(3) == plain
    monkeypatch.setattr("gpusnap.testing.program.initial_bytes", lambda *_: [(900_000, b"x")])
    assert reference_log(3).splitlines()[-1] != plain.splitlines()[-1]


@pytest.mark.parametrize("memory", ["0", "100", "-4096", "much"])
def test_odd_memory_is_refused(machine: Machine, tmp_path: Path, memory: str) -> None:
    program = Program(
        machine,
        tmp_path / "log",
        "-m",
        "gpusnap.testing.program",
        tmp_path / "log",
        1,
        f"--memory={memory}",
    )
    assert program.process.wait() == 2
    assert "--memory" in program.errors.read_text()
    assert count_steps(program.log) == 0


def test_without_a_machine_it_says_so(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GPUSNAP_SIM_DIR"}
    done = subprocess.run(
        [sys.executable, "-m", "gpusnap.testing.program", str(tmp_path / "log"), "1"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "GPUSNAP_SIM_DIR names no simulated machine\n"
