"""Which processes hold state in KFD.

KFD binds its state to an address space and lists it under ``/sys/class/kfd/kfd/proc`` by the
PID of the initial PID namespace. In another namespace those numbers name other processes, so
there only the descriptors of ``/dev/kfd`` can tell.
"""

from collections.abc import Collection
from pathlib import Path

from gpusnap.types import Claim, Device, DeviceProcess, Target
from gpusnap_amd.sysfs import names, numbers, read_integer, read_line
from gpusnap_amd.topology import Topology

_KFD = "/dev/kfd"
_INITIAL_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel's ``include/linux/proc_ns.h``."""


def list_processes(
    sysfs: Path, proc: Path, topology: Topology, devices: tuple[Device, ...]
) -> tuple[DeviceProcess, ...]:
    """One struct for each process and device with video memory.

    Where KFD's table is no help, one for each process and device that it has open beside
    ``/dev/kfd``; how much memory it holds there is unknown.
    """
    table = _table(sysfs, proc)
    if table is None:
        return _list_holders(proc, topology, devices)
    return tuple(
        DeviceProcess(pid=pid, device_uuid=device.uuid, memory=memory, name=_name(proc, pid))
        for pid in numbers(table)
        for gpu, device in zip(topology.gpus, devices, strict=True)
        if (memory := read_integer(table / f"{pid}/vram_{gpu.gpu_id}"))
    )


def _list_holders(
    proc: Path, topology: Topology, devices: tuple[Device, ...]
) -> tuple[DeviceProcess, ...]:
    return tuple(
        DeviceProcess(pid=pid, device_uuid=device.uuid, name=_name(proc, pid))
        for pid in numbers(proc)
        if _KFD in (opened := _opened(proc, pid))
        for gpu, device in zip(topology.gpus, devices, strict=True)
        if f"/dev/dri/renderD{gpu.properties.drm_render_minor}" in opened
    )


def claim(sysfs: Path, proc: Path, target: Target) -> Claim:
    """Claim the processes of a target that KFD knows."""
    pids = known(sysfs, proc, target.pids)
    how = "KFD's process table lists" if _table(sysfs, proc) else f"{_KFD} is open in"
    told = ", ".join(f"{each.pid} ({each.name})" for each in target.processes if each.pid in pids)
    return Claim(pids=pids, reason=f"{how} {told or 'no process of the target'}")


def known(sysfs: Path, proc: Path, pids: Collection[int]) -> tuple[int, ...]:
    """Those of some processes that hold state in KFD, as far as can be told."""
    table = _table(sysfs, proc)
    if table is None:
        return tuple(pid for pid in pids if _KFD in _opened(proc, pid))
    listed = set(numbers(table))
    return tuple(pid for pid in pids if pid in listed)


def _table(sysfs: Path, proc: Path) -> Path | None:
    """KFD's table of processes, where there is one and its numbers are ours."""
    table = sysfs / "class/kfd/kfd/proc"
    ours = _link(proc / "self/ns/pid") == _INITIAL_NAMESPACE
    return table if ours and table.is_dir() else None


def _name(proc: Path, pid: int) -> str | None:
    return read_line(proc / f"{pid}/comm")


def _opened(proc: Path, pid: int) -> set[str | None]:
    folder = proc / f"{pid}/fd"
    return {_link(folder / name) for name in names(folder)}


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
