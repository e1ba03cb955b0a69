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


def test_every_scenario_last_passed() -> None:
    """A run that failed is kept as it was; a later one of the same scenario has to pass."""
    outcomes: dict[str, list[tuple[str, str]]] = {}
    for file in EVIDENCE:
        document = json.loads(file.read_text())
        assert document["machine"]["gpu"]
        assert document["machine"]["driver"]
        for record in document["scenarios"]:
            found = outcomes.setdefault(record["scenario"], [])
            found.append((document["date"], record["outcome"]))
    expected = {scenario.__name__ for scenario in SCENARIOS}
    assert outcomes.keys() >= expected
    last = {scenario: max(runs)[1] for scenario, runs in outcomes.items()}
    assert set(last.values()) == {"passed"}, last
