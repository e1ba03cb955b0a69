"""The debugger's answers, by a script in its place: no ROCm is needed."""

from pathlib import Path

import pytest

from gpusnap.types import Finding, Severity
from gpusnap_amd import AmdBackend, rocgdb
from tests.amd.invented import make_target

OUTPUT = """\
  Id State Target Id                  Architecture Device Name    Cores Threads Location
  1  A     AMDGPU Agent (GPUID 51001) gfx90a       AMD Instinct   416   3328    29:00.0
  2  A     AMDGPU Agent (GPUID 51002) gfx90a       AMD Instinct   416   3328    2a:00.0
  Id   Target Id                Type         Read   Write  Size     Address
  1    AMDGPU Queue 1:1 (QID 0) HSA (Multi)  8      8      1048576  0x00007fff
  2    AMDGPU Queue 2:2 (QID 1) HSA (Multi)  8      8      1048576  0x00007ffe
  Id   Target Id                      Grid       Workgroup Fence   Kernel Function
  1    AMDGPU Dispatch 1:1:1 (PKID 0) [64,1,1]   [64,1,1]  B|Aa|Ra step(int*)
  Id   Target Id                              Frame
  1    Thread 0x7ffff (LWP 70) "train"        0x00007ffff
* 5    AMDGPU Wave 1:1:1:1 (0,0,0)/0          step () at train.cpp:9
  6    AMDGPU Wave 1:1:1:2 (1,0,0)/0          step () at train.cpp:9
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A debugger that writes down how it was called, and answers."""
    (tmp_path / "output").write_text(OUTPUT)
    tool = tmp_path / "rocgdb"
    write(tool, f'printf "%s\\n" "$@" >{tmp_path}/arguments; cat {tmp_path}/output')
    monkeypatch.setenv("GPUSNAP_ROCGDB_TOOL", str(tool))
    return tool


def write(tool: Path, script: str) -> None:
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def only(pid: int = 70) -> Finding:
    (finding,) = rocgdb.diagnose(pid)
    assert (finding.code, finding.severity) == ("rocgdb-failed", Severity.WARNING)
    return finding


def test_queues_and_waves_are_told(tool: Path) -> None:
    queues, waves = AmdBackend().gpusnap_diagnose(make_target(69, 70), (70,))
    assert {each.severity for each in (queues, waves)} == {Severity.INFO}
    assert queues.text == "Queues of process 70 that rocgdb sees: 2, on 2 GPUs"
    assert waves.text == "Waves of process 70 that rocgdb sees: 2, of 1 dispatches"


def test_it_is_detached_at_last(tool: Path) -> None:
    rocgdb.diagnose(70)
    arguments = (tool.parent / "arguments").read_text().splitlines()
    assert arguments[:4] == ["--batch", "--nx", "--quiet", "--pid=70"]
    assert arguments[-1] == "detach"


def test_without_the_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUSNAP_ROCGDB_TOOL", raising=False)
    monkeypatch.setattr(rocgdb, "_PLACES", ("no-such-rocgdb", str(tmp_path / "rocgdb")))
    assert only().text == "There is no rocgdb to look at the process with"


def test_a_named_tool_is_a_decision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUSNAP_ROCGDB_TOOL", str(tmp_path / "mine"))
    assert str(tmp_path / "mine") in only().text


def test_a_process_that_another_traces(tool: Path) -> None:
    (tool.parent / "output").write_text("ptrace: Operation not permitted.\n")
    assert only().text == (
        "rocgdb could not attach to process 70: ptrace: Operation not permitted."
    )


def test_a_tool_that_fails(tool: Path) -> None:
    write(tool, "exit 4")
    assert only().text == "rocgdb ended with exit code 4"


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_tool_that_does_not_end(
    tool: Path, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    monkeypatch.setattr(rocgdb, "_DEADLINE_S", 0.2)
    monkeypatch.setattr(rocgdb, "_GRACE_S", 0.2)
    write(tool, f"{'trap : TERM; ' if stubborn else ''}exec 2>&- >&-; while :; do sleep 0.1; done")
    assert only().text == "rocgdb did not answer within 0.2 s and was ended"
