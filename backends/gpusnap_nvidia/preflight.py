"""Looks for what would make an operation fail, without touching the processes.

Memory shared by CUDA IPC cannot be told beforehand: no interface names it. Managed memory and
events shared by CUDA IPC are told by their mappings.
"""

from collections.abc import Iterator

import psutil

from gpusnap.types import Device, DeviceState, Finding, Operation, Severity
from gpusnap_nvidia.calls import Calls
from gpusnap_nvidia.mappings import unrestorable
from gpusnap_nvidia.nccl import shared_transport
from gpusnap_nvidia.uses import Use, memory_of

_SAVING = frozenset({Operation.CHECKPOINT, Operation.SUSPEND})
_FIRST_BRANCH_FOR_PYTORCH = 575


def preflight(calls: Calls, pids: tuple[int, ...], operation: Operation) -> tuple[Finding, ...]:
    """Check machine and processes.

    Args:
        calls: The driver.
        pids: The claimed processes.
        operation: What is about to happen.

    Returns:
        Findings, errors among them where the operation cannot work.
    """
    devices, uses = calls.devices(), calls.uses()
    own = tuple(use for use in uses if use.pid in pids)
    findings = [*_devices(devices, own), *_driver(devices)]
    findings += _states(calls.states(pids), pids, operation)
    if operation in _SAVING:
        findings += [*_processes(own), *_host_memory(pids, own), *shared_transport(pids, own)]
        findings += unrestorable(pids)
    return tuple(findings)


def _devices(devices: tuple[Device, ...], own: tuple[Use, ...]) -> Iterator[Finding]:
    used = {use.device_uuid for use in own}
    for device in devices:
        if device.partitioned and (not used or device.uuid in used):
            yield Finding(
                code="nvidia-mig",
                severity=Severity.ERROR,
                text=f"GPU {device.index} ({device.uuid}) is split by MIG, which the driver "
                "cannot checkpoint",
                cure=f"Turn MIG off: nvidia-smi -i {device.index} -mig 0",
            )
        if device.persistence_mode is False:
            yield Finding(
                code="nvidia-persistence",
                severity=Severity.INFO,
                text=f"Persistence mode of GPU {device.index} is off: the first driver call "
                "may take seconds",
                cure=f"nvidia-smi -i {device.index} -pm 1",
            )


def _driver(devices: tuple[Device, ...]) -> Iterator[Finding]:
    version = devices[0].driver_version if devices else None
    branch = (version or "").partition(".")[0]
    if branch.isdigit() and int(branch) < _FIRST_BRANCH_FOR_PYTORCH:
        yield Finding(
            code="nvidia-driver-old",
            severity=Severity.WARNING,
            text=f"Driver {version} is known to fail on PyTorch programs",
            cure=f"Install driver {_FIRST_BRANCH_FOR_PYTORCH} or newer",
        )


def _states(
    states: dict[int, DeviceState], pids: tuple[int, ...], operation: Operation
) -> Iterator[Finding]:
    wanted = DeviceState.RUNNING if operation in _SAVING else DeviceState.CHECKPOINTED
    for pid in pids:
        state = states.get(pid)
        if state is None:
            yield Finding(
                code="device-unknown-process",
                severity=Severity.ERROR,
                text=f"The driver does not know process {pid}",
                pid=pid,
            )
        elif state is not wanted:
            yield Finding(
                code=f"device-not-{wanted.value}",
                severity=Severity.ERROR,
                text=f"Process {pid} is {state} in the driver, not {wanted}",
                cure=_state_cure(pid, state),
                pid=pid,
            )


def _state_cure(pid: int, state: DeviceState) -> str | None:
    if state is DeviceState.CHECKPOINTED:
        return f"Run gpusnap resume {pid} if it was suspended, else gpusnap recover"
    if state is DeviceState.FAILED:
        return "Start the program anew: its device memory is lost"
    if state is DeviceState.RUNNING:
        return None
    return "Run gpusnap recover"


def _processes(own: tuple[Use, ...]) -> Iterator[Finding]:
    for pid in sorted({use.pid for use in own if use.through_mps}):
        yield Finding(
            code="nvidia-mps",
            severity=Severity.ERROR,
            text=f"Process {pid} uses the GPU through MPS, which the driver cannot checkpoint",
            cure="Start it without the multi-process service",
            pid=pid,
        )


def _host_memory(pids: tuple[int, ...], own: tuple[Use, ...]) -> Iterator[Finding]:
    needed, free = memory_of(own, pids), psutil.virtual_memory().available
    if needed > free:
        yield Finding(
            code="host-memory",
            severity=Severity.ERROR,
            text=f"The device memory of the target ({needed} bytes) does not fit into the free "
            f"host memory ({free} bytes)",
            cure="Free host memory",
        )
