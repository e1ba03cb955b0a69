"""The scenarios on the GPU at hand, and the evidence that was kept of earlier runs."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.evidence import NEED_PLUGIN, SCENARIOS, Figures, Lab

EVIDENCE = sorted((Path(__file__).parents[2] / "docs" / "evidence").glob("*.json"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    for program in ("nvidia-smi", "nvcc"):
        if shutil.which(program) is None:
            pytest.skip(f"No NVIDIA GPU to run on: {program} is not there")
    if os.geteuid() != 0:
        pytest.skip("Needs root: processes are dumped and restored")
    named = os.environ.get("GPUSNAP_CUDA_PLUGIN")
    return Lab(tmp_path_factory.mktemp("images"), Path(named).parent if named else None)


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(lab: Lab, scenario: Callable[[Lab], Figures]) -> None:
    if scenario in NEED_PLUGIN and lab.plugin is None:
        pytest.skip("GPUSNAP_CUDA_PLUGIN names no cuda_plugin.so")
    scenario(lab)


@pytest.mark.parametrize("file", EVIDENCE, ids=lambda file: file.name)
def test_kept_evidence_is_of_runs_that_passed(file: Path) -> None:
    document = json.loads(file.read_text())
    assert document["machine"]["gpu"]
    assert document["machine"]["driver"]
    outcomes = {each["scenario"]: each["outcome"] for each in document["scenarios"]}
    assert set(outcomes.values()) == {"passed"}
    assert outcomes.keys() <= {scenario.__name__ for scenario in SCENARIOS}


def test_there_is_evidence() -> None:
    assert EVIDENCE
