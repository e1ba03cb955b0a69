import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpusnap_nvidia import kernel
from gpusnap_nvidia.program import reference_log
from tests.nvidia.machine import SimulatedMachine


def test_result_is_that_of_the_reference(machine: SimulatedMachine) -> None:
    program = machine.start_program(40)
    assert program.result() == program.expected


def test_reference_depends_on_every_step_and_on_memory() -> None:
    logs = {reference_log(steps, memory) for steps in (3, 4) for memory in (1 << 16, 1 << 17)}
    assert len(logs) == 4
    assert reference_log(4, 1 << 16).splitlines()[:3] == reference_log(3, 1 << 16).splitlines()[:3]


def test_odd_memory_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpusnap_nvidia.program", str(tmp_path / "log"), "1"]
    run = subprocess.run([*command, "--memory=4095"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "4095 is no positive multiple of 4096" in run.stderr


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_kernel_is_valid_ptx(tmp_path: Path, architecture: str) -> None:
    ptxas = shutil.which("ptxas") or shutil.which("/usr/local/cuda/bin/ptxas")
    if ptxas is None:
        pytest.skip("Needs CUDA's ptxas")
    (tmp_path / "kernel.ptx").write_text(kernel.PTX)
    subprocess.run(
        [ptxas, f"-arch={architecture}", "kernel.ptx", "-o", "kernel.cubin"],
        cwd=tmp_path,
        check=True,
    )
