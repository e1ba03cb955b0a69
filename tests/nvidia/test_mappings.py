"""What the driver cannot bring back is told from the mappings of real processes."""

from pathlib import Path

import pytest

from gpusnap.types import Finding, Severity
from gpusnap_nvidia import mappings
from tests.nvidia.machine import SimulatedMachine, await_true

MIB = 1 << 20


def maps(machine: SimulatedMachine, path: Path, size: int) -> int:
    """Start a process that maps a file of some size."""
    ready = machine.folder / "ready"
    ready.unlink(missing_ok=True)
    with path.open("ab") as file:
        file.truncate(size)
    code = (
        f"import mmap, pathlib, time; file = open({str(path)!r}, 'r+b')\n"
        f"view = mmap.mmap(file.fileno(), {size})\n"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )
    process = machine.start("-c", code)
    await_true(ready.exists, "the process maps the file")
    return process.pid


def check(*pids: int) -> list[Finding]:
    return list(mappings.unrestorable(pids))


def test_managed_memory(machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    device = machine.folder / "nvidia-uvm"
    monkeypatch.setattr(mappings, "_MANAGED", str(device))
    plain = maps(machine, device, 2 * MIB)
    assert check(plain) == []
    managed = maps(machine, device, 64 * MIB)
    (finding,) = check(plain, managed)
    assert (finding.code, finding.pid) == ("nvidia-managed-memory", managed)
    assert finding.severity is Severity.WARNING
    assert f"{64 * MIB} bytes" in finding.text


def test_cuda_ipc(machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = machine.folder / "cuda.shm.0.1af.1"
    monkeypatch.setattr(mappings, "_SHARED", str(machine.folder / "cuda.shm."))
    exporter = maps(machine, shared, 81920)
    assert check(exporter) == []
    importer = maps(machine, shared, 81920)
    found = check(exporter, importer)
    assert [(each.code, each.pid) for each in found] == [
        ("nvidia-cuda-ipc", exporter),
        ("nvidia-cuda-ipc", importer),
    ]
    assert {each.severity for each in found} == {Severity.ERROR}


def test_a_traced_library(machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = machine.folder / "uprobe_events"
    monkeypatch.setattr(mappings, "_UPROBES", (probes, machine.folder / "none"))
    library = machine.folder / "libcuda.so.1"
    program = maps(machine, library, 4096)
    assert check(program) == []
    probes.write_text(f"p:agent/launch {library}0:0x10\n")
    assert check(program) == []
    probes.write_text(f"p:agent/launch {library}:0x00000000000010f9 arg=%di\n")
    (finding,) = check(program)
    assert (finding.code, finding.severity) == ("nvidia-uprobe", Severity.WARNING)
    assert str(library) in finding.text


def test_a_process_that_ended(machine: SimulatedMachine) -> None:
    assert check(2**22 + 1) == []
