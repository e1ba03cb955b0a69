"""What a user of the command line is told of AMD devices, on a captured machine."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpusnap_amd
from gpusnap.cli import evidence
from tests.amd.captured import lay_out
from tests.amd.invented import Machine
from tests.cli.conftest import Command

REASON = (
    "AMD's driver gives a process's device state to nobody but CRIU's amdgpu plugin, in the "
    "middle of a dump"
)
UNTRIED = "not yet run on AMD hardware"


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "amd")
    lay_out(machine, "mi308x-cpx")
    monkeypatch.setenv("GPUSNAP_SYSFS", str(machine.sysfs))
    monkeypatch.setattr(gpusnap_amd.backend, "_proc", machine.proc)
    return machine


@pytest.fixture
def busy(amd: Machine) -> Iterator[int]:
    """The PID of a process that this machine's KFD lists with 1 GiB on its second device."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        amd.write(f"class/kfd/kfd/proc/{process.pid}/vram_41657", f"{1 << 30}\n")
        yield process.pid


def test_devices(command: Command, amd: Machine) -> None:
    found = command("devices", "--backend=amd", "--json").document["devices"]
    assert len(found) == 32
    assert (found[1]["vendor"], found[1]["architecture"]) == ("AMD", "gfx942")
    answer = command("devices", "--backend=amd", "GPU-084cafeae17e7696-1")
    assert "(partitioned)" in answer.out.splitlines()[1]
    assert UNTRIED in answer.err


def test_no_driver(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSNAP_SYSFS", str(tmp_path / "empty"))
    command("devices", "--backend=amd").refused(
        13,
        "Backend amd cannot work here: KFD shows no topology: the amdgpu driver is not loaded",
    )


def test_processes(command: Command, busy: int) -> None:
    (found,) = command("ps", "--backend=amd", "--json").document["processes"]
    assert found["pid"] == busy
    assert (found["device_uuid"], found["memory"]) == ("GPU-084cafeae17e7696-1", 1 << 30)


def test_check_of_the_machine(command: Command, amd: Machine) -> None:
    amd.write(f"{amd.node(3)}/properties", "vendor_id none\n")
    told = command("check", "--backend=amd").out
    assert "Backend amd is usable, driver " in told
    assert "amd: KFD node 3 has malformed properties" in told
    assert UNTRIED in told


def test_check_of_a_process(
    command: Command, root: None, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSNAP_AMDGPU_PLUGIN", "/nowhere/amdgpu_plugin.so")
    answer = command("check", busy, "--json")
    findings = {each["code"]: each for each in answer.document["findings"]}
    assert answer.code == 13
    assert "/nowhere/amdgpu_plugin.so" in findings["amd-plugin-missing"]["text"]
    assert UNTRIED in findings["amd-untried"]["text"]


@pytest.mark.parametrize("verb", ["suspend", "resume"])
def test_suspend_is_refused_with_the_reason(
    command: Command, root: None, busy: int, verb: str
) -> None:
    answer = command(verb, busy)
    answer.refused(13, f"Backend amd does not offer suspend: {REASON}")
    assert "cure: Use gpusnap checkpoint --kill and, later, gpusnap restore" in answer.err


def test_rocgdb_looks_into_a_process(
    command: Command, root: None, busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "rocgdb"
    tool.write_text("#!/bin/sh\necho AMDGPU Queue 1:1 '(QID 0)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("GPUSNAP_ROCGDB_TOOL", str(tool))
    findings = command("check", busy, "--rocgdb", "--json").document["findings"]
    told = {each["code"]: each["text"] for each in findings}
    assert told["rocgdb-queues"].startswith(f"Queues of process {busy} that rocgdb sees: 1,")
    assert "rocgdb-waves" in told
    without = command("check", busy, "--json").document["findings"]
    assert [each["code"] for each in without if each["code"].startswith("rocgdb")] == []


def test_rocgdb_without_a_process_on_a_gpu(command: Command, root: None, sleeper: int) -> None:
    command("check", "--rocgdb").refused(2, "rocgdb looks into a process")
    command("check", sleeper, "--rocgdb").refused(
        2, f"Process {sleeper} holds no device state for a debugger to look into"
    )


def test_the_demonstration_needs_a_compiler(
    command: Command, real_criu: None, amd: Machine
) -> None:
    if Path("/opt/rocm/bin/hipcc").exists() or shutil.which("hipcc"):
        pytest.skip("This machine has one")
    command("demo", "--backend=amd").refused(
        13, "The program for backend amd needs hipcc, which is not there"
    )


def test_evidence_says_what_is_missing(
    command: Command, root: None, amd: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/opt/rocm/bin/hipcc").exists() or shutil.which("hipcc"):
        pytest.skip("This machine has a compiler")
    monkeypatch.setenv("GPUSNAP_AMDGPU_PLUGIN", "/nowhere/amdgpu_plugin.so")
    monkeypatch.setattr(evidence, "_try", lambda kind: failed_trial(kind.backend))
    found = command("evidence", "--json").document
    assert len(found["devices"]) == 32
    assert {each["uuid"] for each in found["devices"]} == {f"DEVICE-{index}" for index in range(32)}
    missing, compiler = found["failures"]
    assert "there is no /nowhere/amdgpu_plugin.so" in missing
    assert "needs hipcc" in compiler
    assert [trial["backend"] for trial in found["trials"]] == ["simulated"]


def failed_trial(backend: str) -> evidence.Trial:
    return evidence.Trial(
        backend=backend,
        simulated=True,
        exit_code=None,
        identical=False,
        microseconds=1,
        lines=(),
    )
