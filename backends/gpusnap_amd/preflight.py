"""Says why an operation on AMD GPUs cannot work, and what a user should know of the machine."""

from collections.abc import Collection, Iterator

from gpusnap.errors import NoBackendError
from gpusnap.types import Finding, Operation, Severity, Target
from gpusnap_amd.criu_plugin import find_plugin
from gpusnap_amd.kfd import find_obstacle


def preflight(
    target: Target,
    pids: Collection[int],
    operation: Operation,
    skipped: Collection[str],
    broken: Collection[str],
) -> tuple[Finding, ...]:
    """Collect the findings, the errors first.

    Args:
        target: The whole tree.
        pids: The claimed processes.
        operation: What is about to happen.
        skipped: Why nodes of KFD's topology are not among the devices.
        broken: Why libraries cannot be used.
    """
    return (
        *_refusals(target, pids, operation),
        *_skipped(skipped),
        *_broken(broken),
        Finding(
            code="amd-untried",
            severity=Severity.INFO,
            text="The AMD backend was developed against captured topologies and a simulated KFD, "
            "and has not yet run on AMD hardware",
        ),
    )


def _refusals(target: Target, pids: Collection[int], operation: Operation) -> Iterator[Finding]:
    if operation is Operation.CHECKPOINT:
        return
    names = {process.pid: process.name for process in target.processes}
    for pid in pids:
        yield Finding(
            code="checkpoint-not-offered",
            severity=Severity.ERROR,
            text=f"Process {pid} ({names.get(pid, 'unnamed')}) holds state in an AMD GPU, and "
            f"AMD's driver cannot {operation.value} it",
            cure="Use gpusnap checkpoint --kill and gpusnap restore",
            pid=pid,
        )


def find_obstacles(*, ask_kfd: bool) -> Iterator[Finding]:
    """What this machine lacks for a checkpoint.

    Args:
        ask_kfd: Whether KFD's node belongs to the machine that is looked at.
    """
    try:
        find_plugin()
    except NoBackendError as error:
        yield Finding(
            code="amd-plugin-missing", severity=Severity.ERROR, text=error.text, cure=error.cure
        )
    if ask_kfd and (obstacle := find_obstacle()):
        yield Finding(
            code="amd-kfd-version",
            severity=Severity.ERROR,
            text=obstacle,
            cure="Use Linux 6.0 or newer, or the driver of a newer ROCm; run gpusnap as root",
        )


def _skipped(reasons: Collection[str]) -> Iterator[Finding]:
    for reason in reasons:
        yield Finding(
            code="amd-node-skipped",
            severity=Severity.WARNING,
            text=reason,
            cure="Run gpusnap where all GPUs are shown, outside of the container perhaps",
        )


def _broken(failures: Collection[str]) -> Iterator[Finding]:
    for failure in failures:
        yield Finding(
            code="amd-library",
            severity=Severity.INFO,
            text=f"{failure}; what sysfs does not tell stays unknown",
            cure="Install the package that comes with this machine's ROCm, or none",
        )
