"""Tells from a process's mappings what its driver cannot bring back.

Measured with driver 580 on an H200: a plain context maps one 2 MiB window of /dev/nvidia-uvm,
managed memory one more of its own size at its own address; an event that is shared by CUDA IPC
maps a file /dev/shm/cuda.shm.* in every process that holds it. Memory that is shared by CUDA
IPC leaves no trace in mappings or descriptors.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gpusnap.errors import GpusnapError
from gpusnap.target import Mapping, read_maps
from gpusnap.types import Finding, Severity

_MANAGED = "/dev/nvidia-uvm"
_WINDOW = 2 << 20
_LIBRARY = "/libcuda.so"
_UPROBES = tuple(
    Path(folder, "uprobe_events") for folder in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
)
"""The kernel's list of probes in programs; those set by perf events and BPF are in no list."""
_SHARED = "/dev/shm/cuda.shm."  # noqa: S108 - the driver's name, opened by nobody here


def unrestorable(pids: tuple[int, ...]) -> Iterator[Finding]:
    """Find managed memory, and CUDA IPC between the processes.

    Args:
        pids: The claimed processes.
    """
    maps = {pid: _maps(pid) for pid in pids}
    for pid, mappings in maps.items():
        yield from _managed(pid, mappings)
    yield from _shared(maps)
    yield from _traced(maps)


def _maps(pid: int) -> tuple[Mapping, ...]:
    try:
        return read_maps(pid)
    except GpusnapError:  # gone, or hidden: other findings say so
        return ()


def _managed(pid: int, mappings: tuple[Mapping, ...]) -> Iterator[Finding]:
    size = sum(each.length for each in mappings if each.path == _MANAGED and each.length > _WINDOW)
    if size:
        yield Finding(
            code="nvidia-managed-memory",
            severity=Severity.WARNING,
            text=f"Process {pid} maps {size} bytes of {_MANAGED}, managed memory by the look of "
            "it, which the driver refuses to checkpoint",
            cure="Use cudaMalloc or pinned host memory in the program instead",
            pid=pid,
        )


def _shared(maps: dict[int, tuple[Mapping, ...]]) -> Iterator[Finding]:
    names = {
        pid: {x.path for x in each if x.path.startswith(_SHARED)} for pid, each in maps.items()
    }
    holders = Counter(name for each in names.values() for name in each)
    for pid, mine in names.items():
        common = sorted(name for name in mine if holders[name] > 1)
        if common:
            yield Finding(
                code="nvidia-cuda-ipc",
                severity=Severity.ERROR,
                text=f"Process {pid} shares {common[0]} with another process, so device memory "
                "as well by CUDA IPC: the driver could not restore it",
                cure="Let the processes exchange data by host memory; PyTorch does for tensors "
                "that are moved to the CPU before they are sent",
                pid=pid,
            )


def _traced(maps: dict[int, tuple[Mapping, ...]]) -> Iterator[Finding]:
    probed = "".join(map(_read, _UPROBES))
    for pid, mappings in maps.items():
        libraries = {each.path for each in mappings if _LIBRARY in each.path}
        traced = sorted(path for path in libraries if f" {path}:" in probed)
        if traced:
            yield Finding(
                code="nvidia-uprobe",
                severity=Severity.WARNING,
                text=f"Calls of process {pid} into {traced[0]} are traced by a uprobe, with which "
                "every CUDA call was seen to hang after a restore",
                cure="Stop the agent that monitors GPU programs, until after the restore",
                pid=pid,
            )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
