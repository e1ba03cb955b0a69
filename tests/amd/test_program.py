"""The HIP program's logic, compiled for the CPU: no ROCm is needed, and none is shown to work."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEADERS = Path(__file__).parent / "fakehip"


def run(folder: Path, compiler: Path, steps: int) -> "subprocess.CompletedProcess[str]":
    arguments = [str(folder / "log"), str(steps), "--memory", "65536", "--step-us", "0"]
    return subprocess.run(
        [sys.executable, "-m", "gpusnap_amd.program", *arguments],
        env={"PATH": "/usr/bin:/bin", "GPUSNAP_HIPCC": str(compiler)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_log_depends_on_its_arguments_alone(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("Needs g++")
    compiler = tmp_path / "hipcc"
    compiler.write_text(f'#!/bin/sh\nexec g++ -x c++ -w -isystem "{HEADERS}" "$@"\n')
    compiler.chmod(0o755)
    logs = []
    for _ in range(2):
        ended = run(tmp_path, compiler, 20)
        assert ended.returncode == 0, ended.stderr
        logs.append((tmp_path / "log").read_text())
        (tmp_path / "log").unlink()
    assert logs[0] == logs[1]
    *steps, done = logs[0].splitlines()
    assert [line.split()[0] for line in steps] == [str(step) for step in range(20)]
    assert len({line.split()[1] for line in steps}) == 20
    assert re.fullmatch("done [0-9a-f]{16}", done)


def test_without_a_compiler(tmp_path: Path) -> None:
    ended = run(tmp_path, tmp_path / "none", 1)
    assert ended.returncode == 1
    assert ended.stderr.startswith("The HIP program cannot be compiled: ")
