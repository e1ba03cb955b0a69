"""``gpusnap metrics``."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpusnap.testing import Machine
from tests.cli.conftest import Command


@pytest.fixture
def textfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "gpusnap.prom"
    monkeypatch.setenv("GPUSNAP_METRICS_TEXTFILE", str(path))
    return path


def test_devices_and_counts_are_shown(command: Command, machine: Machine, textfile: Path) -> None:
    assert command("restore", "nothing", "--repo", textfile.parent / "none").code == 10
    answer = command("metrics")
    assert answer.code == 0
    families = {family.name: family for family in text_string_to_metric_families(answer.out)}
    assert len(families["gpusnap_device_info"].samples) >= 2
    (failure,) = families["gpusnap_failures"].samples
    assert failure.labels == {"operation": "restore", "code": "10", "error": "NotFoundError"}
    assert "gpusnap_device" not in textfile.read_text(), "to look is not to write"


def test_in_json(command: Command, machine: Machine) -> None:
    samples = command("metrics", "--json").document["samples"]
    infos = [each for each in samples if each["name"] == "gpusnap_device_info"]
    assert {each["value"] for each in infos} == {1.0}
    assert {"uuid", "index", "model"} <= set(infos[0]["labels"])


def test_a_timer_updates_the_health(command: Command, machine: Machine, textfile: Path) -> None:
    assert command("metrics", "--update").code == 0
    assert "gpusnap_device_temperature_celsius{" in textfile.read_text()


def test_an_update_that_cannot_be_written(
    command: Command, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSNAP_METRICS_TEXTFILE", "/proc/gpusnap.prom")
    answer = command("metrics", "--update")
    answer.refused(
        2, "The metrics file /proc/gpusnap.prom cannot be written: No such file or directory"
    )


def test_without_the_client(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    answer = command("metrics")
    answer.refused(1, "Metrics need the Python package prometheus-client, which is not installed")
    assert "  cure: Run pip install 'gpusnap[metrics]'\n" in answer.err
