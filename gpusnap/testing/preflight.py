"""What the simulated backend looks for before an operation."""

from collections.abc import Iterator

import psutil

from gpusnap.testing.driver import find_registration
from gpusnap.testing.machine import Machine, Registration
from gpusnap.types import DeviceState, Finding, Operation, Severity

_NEEDED_STATES = {
    Operation.CHECKPOINT: DeviceState.RUNNING,
    Operation.SUSPEND: DeviceState.RUNNING,
    Operation.RESTORE: DeviceState.CHECKPOINTED,
    Operation.RESUME: DeviceState.CHECKPOINTED,
}


def check_processes(
    machine: Machine, pids: tuple[int, ...], operation: Operation
) -> Iterator[Finding]:
    """Look at the claimed processes, and at the memory the operation will need."""
    found = []
    for pid in pids:
        registration = find_registration(machine, pid)
        if registration is None:
            yield _unknown(pid)
            continue
        found.append(registration)
        yield from _check_state(registration, operation)
    if _NEEDED_STATES[operation] is DeviceState.RUNNING:
        yield from _check_host_memory(found)
    else:
        yield from _check_device_memory(machine, found)


def _unknown(pid: int) -> Finding:
    return Finding(
        code="device-unknown-process",
        severity=Severity.ERROR,
        text=f"The simulated driver does not know process {pid}",
        pid=pid,
    )


def _check_state(registration: Registration, operation: Operation) -> Iterator[Finding]:
    needed = _NEEDED_STATES[operation]
    if registration.state is needed:
        return
    pid, state = registration.owner.pid, registration.state
    yield Finding(
        code=f"device-not-{needed.value}",
        severity=Severity.ERROR,
        text=f"Process {pid} is {state.value} in the driver, "
        f"a {operation.value} needs it {needed.value}",
        cure=_cure(state),
        pid=pid,
    )


def _cure(state: DeviceState) -> str | None:
    if state is DeviceState.FAILED:
        return "Start the program anew: its device memory is lost"
    if state is DeviceState.RUNNING:
        return None
    return "Run gpusnap recover, or gpusnap resume if it was suspended"


def _check_host_memory(found: list[Registration]) -> Iterator[Finding]:
    needed = sum(registration.memory for registration in found)
    available = psutil.virtual_memory().available
    if needed > available:
        yield Finding(
            code="host-memory",
            severity=Severity.ERROR,
            text=f"The checkpoint moves {needed} bytes into host memory, {available} are available",
            cure="Free host memory first",
        )


def _check_device_memory(machine: Machine, found: list[Registration]) -> Iterator[Finding]:
    for device in machine.description.devices:
        needed = sum(registration.memory_on(device.uuid) for registration in found)
        free = machine.free(device.uuid)
        if needed > free:
            yield Finding(
                code="device-memory-free",
                severity=Severity.ERROR,
                text=f"Device {device.uuid} has {free} bytes free, {needed} have to come back",
                cure="End other programs on that device first",
            )
