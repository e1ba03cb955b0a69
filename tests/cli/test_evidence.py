"""The file that a person with a GPU sends back, here from a machine without one."""

import json
import platform
from pathlib import Path

import pytest

from gpusnap.cli import evidence
from gpusnap.testing import Machine
from tests.cli.conftest import Command

HERE = {each: getattr(platform, each)() for each in ("node", "release", "machine")}


@pytest.mark.slow
def test_without_a_gpu(
    command: Command, real_criu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_STEPS", 200)
    monkeypatch.setenv("KFD_FW_VER_CHECK", "0")
    monkeypatch.setenv("GPUSNAP_SYSFS", str(tmp_path / "none"))
    file = tmp_path / "evidence.json"
    answer = command("evidence", "--output", file)
    assert answer.code == 0, file.read_text()
    assert "on the simulated device: this machine has no GPU to try" in answer.err
    found = json.loads(file.read_text())
    assert (found["kernel"], found["machine"]) == (HERE["release"], HERE["machine"])
    assert "KFD_FW_VER_CHECK" in found["variables"]
    assert {each["info"]["name"] for each in found["backends"]} >= {"amd", "nvidia"}
    (trial,) = found["trials"]
    assert (trial["simulated"], trial["identical"], trial["exit_code"]) == (True, True, 0)
    assert trial["lines"][-1]["result"]["identical"] is True


def collected(**changes: object) -> evidence.Evidence:
    fields: dict[str, object] = {
        "created": "2026-01-01T00:00:00Z",
        **dict.fromkeys(("gpusnap", "python", "kernel", "machine", "libc"), "1"),
        **dict.fromkeys(("variables", "backends", "devices", "findings", "trials"), ()),
        "criu": None,
        "compilers": {},
        "failures": (),
    }
    return evidence.Evidence(**(fields | changes))  # type: ignore[arg-type]


def test_names_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "tower")
    monkeypatch.setenv("HOME", "/home/somebody")
    said = ("CRIU at /home/somebody/.local is used", {"host": ["on tower.lan", 1, "watchtower"]})
    trial = evidence.Trial(
        backend="amd", simulated=False, exit_code=1, identical=False, microseconds=1, lines=said
    )
    (found,) = evidence._anonymous(collected(trials=(trial,))).trials
    assert found.lines == (
        "CRIU at ~/.local is used",
        {"host": ["on HOST.lan", 1, "watchtower"]},
    )


def test_devices_have_no_serial_numbers(
    command: Command, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    monkeypatch.setattr(evidence, "_try", failed)
    answer = command("evidence", "--json")
    assert answer.code == 1
    found = answer.document
    assert found["devices"][0]["uuid"] == "simulated-0"
    assert [trial["exit_code"] for trial in found["trials"]] == [None]


def failed(kind: object) -> evidence.Trial:
    return evidence.Trial(
        backend="simulated",
        simulated=True,
        exit_code=None,
        identical=False,
        microseconds=1,
        lines=(),
    )


def test_a_file_that_cannot_be_written(command: Command, tmp_path: Path) -> None:
    answer = command("evidence", "--output", tmp_path / "none" / "file")
    answer.refused(2, f"{tmp_path}/none/file cannot be written: No such file or directory")
