"""Which processes hold state in KFD.

KFD binds its state to an address space and lists it under ``/sys/class/kfd/kfd/proc`` by the
PID of the initial PID namespace. In another namespace those numbers name other processes, so
there only the descriptors of ``/dev/kfd`` can tell.
"""

from pathlib import Path

from gpusnap.types import Claim, Device, DeviceProcess, Process, Target
from gpusnap_amd.sysfs import names, numbers, read_integer, read_line
from gpusnap_amd.topology import Topology

_INITIAL_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel's ``include/linux/proc_ns.h``."""


def list_processes(
    sysfs: Path, proc: Path, topology: Topology, devices: tuple[Device, ...]
) -> tuple[DeviceProcess, ...]:
    """One struct for each process and device with video memory; none in a PID namespace."""
    if not _sees_kernel_pids(proc):
        return ()
    table = sysfs / "class/kfd/kfd/proc"
    return tuple(
        DeviceProcess(
            pid=pid, device_uuid=device.uuid, memory=memory, name=read_line(proc / f"{pid}/comm")
        )
        for pid in numbers(table)
        for gpu, device in zip(topology.gpus, devices, strict=True)
        if (memory := read_integer(table / f"{pid}/vram_{gpu.gpu_id}"))
    )


def claim(sysfs: Path, proc: Path, target: Target) -> Claim:
    """Claim the processes of a target that KFD knows."""
    table = sysfs / "class/kfd/kfd/proc"
    if _sees_kernel_pids(proc) and table.is_dir():
        known = set(numbers(table))
        holders = [process for process in target.processes if process.pid in known]
        return _claimed(holders, "KFD's process table lists")
    holders = [process for process in target.processes if _holds_kfd(proc, process.pid)]
    return _claimed(holders, "/dev/kfd is open in")


def _claimed(holders: list[Process], how: str) -> Claim:
    pids = tuple(process.pid for process in holders)
    told = ", ".join(f"{process.pid} ({process.name})" for process in holders)
    return Claim(pids=pids, reason=f"{how} {told or 'no process of the target'}")


def _sees_kernel_pids(proc: Path) -> bool:
    return _link(proc / "self/ns/pid") == _INITIAL_NAMESPACE


def _holds_kfd(proc: Path, pid: int) -> bool:
    folder = proc / f"{pid}/fd"
    return any(_link(folder / name) == "/dev/kfd" for name in names(folder))


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
