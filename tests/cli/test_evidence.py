"""The file that a person with a GPU sends back, here from a machine without one."""

import json
import platform
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from gpusnap.cli import evidence
from gpusnap.testing import Machine
from gpusnap.types import Device, Finding, Severity
from tests.cli.conftest import Command

HERE = {each: getattr(platform, each)() for each in ("node", "release", "machine")}


@pytest.mark.slow
def test_without_a_gpu(
    command: Command, real_criu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    (found,) = evidence._anonymous(collected(trials=(trial(*said),))).trials
    assert found.lines == (
        "CRIU at ~/.local is used",
        {"host": ["on HOST.lan", 1, "watchtower"]},
    )


def trial(*lines: object) -> evidence.Trial:
    return evidence.Trial(
        backend="amd", simulated=False, exit_code=1, identical=False, microseconds=1, lines=lines
    )


def finding(text: str, code: str = "driver-version") -> Finding:
    return Finding(code=code, severity=Severity.ERROR, text=text, cure=f"Ask {text}")


def test_whole_words_alone_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "gpu.lan")
    monkeypatch.setenv("HOME", "/root")
    said = ("gpusnap on gpu, gpu.lan and gpu.lan.old", "/root, /root/x and /rootfs", "a-gpu")
    (found,) = evidence._anonymous(collected(trials=(trial(*said),))).trials
    assert found.lines == (
        "gpusnap on HOST, HOST and HOST.old",
        "~, ~/x and /rootfs",
        "a-HOST",
    )


@pytest.mark.parametrize("node", ["error", "amd", "driver", "", "é(x"])
def test_a_machine_may_have_any_name(monkeypatch: pytest.MonkeyPatch, node: str) -> None:
    monkeypatch.setattr(platform, "node", lambda: node)
    said = f"an {node} here"
    told = said if node == "" else "an HOST here"
    before = collected(findings=(finding(said),), trials=(trial(said),), failures=(said,))
    found = evidence._anonymous(before)
    assert found.findings[0] == msgspec.structs.replace(
        before.findings[0], text=told, cure=f"Ask {told}"
    )
    assert found.trials == (trial(told),)
    assert found.failures == (told,)


def test_devices_are_replaced_in_what_is_said() -> None:
    uuids = ("GPU-0123-45", "GPU-0123-45-1")
    devices = tuple(Device(index=0, uuid=each, vendor="v", model="m") for each in uuids)
    said = ({"from": "GPU-0123-45"}, "GPU-0123-45-1 is in use", "device 0123-45, not 0123-456")
    found = evidence._anonymous(collected(devices=devices, trials=(trial(*said),)))
    assert [each.uuid for each in found.devices] == ["DEVICE-0", "DEVICE-1"]
    assert found.trials[0].lines == (
        {"from": "DEVICE-0"},
        "DEVICE-1 is in use",
        "device DEVICE-0, not 0123-456",
    )


def homeless() -> NoReturn:
    raise RuntimeError("Could not determine home directory.")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", homeless)
    assert evidence._anonymous(collected(failures=("a /b",))).failures == ("a /b",)


def test_a_root_that_is_the_home_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    assert evidence._anonymous(collected(failures=("a / b",))).failures == ("a / b",)


def test_any_bytes_can_be_written(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A surrogate stands for a byte that is no UTF-8, as in the name of a folder."""
    found = collected(failures=("no \udcff here",), trials=())
    monkeypatch.setattr(evidence, "_collect", lambda _plugins: found)
    file = tmp_path / "evidence.json"
    answer = command("evidence", "--json", "--output", file)
    assert (answer.code, answer.err) == (0, "")
    assert answer.document["failures"] == ["no \\udcff here"]
    assert json.loads(file.read_text()) == answer.document


def test_devices_have_no_serial_numbers(
    command: Command, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    monkeypatch.setattr(evidence, "_try", failed)
    answer = command("evidence", "--json")
    assert answer.code == 1
    found = answer.document
    assert [each["uuid"] for each in found["devices"]] == ["DEVICE-0", "DEVICE-1"]
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
    assert answer.err.splitlines()[1] == "  cure: Name a file that you may write"


def test_a_file_from_before_stays_until_there_is_another(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(evidence, "_collect", interrupted)
    file = tmp_path / "file"
    file.write_text("from before")
    assert command("evidence", "--output", file).code == 130
    assert file.read_text() == "from before"
