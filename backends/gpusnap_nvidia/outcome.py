"""Turns the failures of concurrent calls into the one error that is raised.

A call that was not answered has an unknown outcome. It is never made again and never taken
for done: the state is read back, through a fresh worker where the old one is lost, and goes
with the error, so that the caller can put things right by state.
"""

from gpusnap.errors import DeadlineError, DeviceError, GpusnapError
from gpusnap_nvidia.calls import Calls, Unusable


def _weight(error: GpusnapError) -> int:
    """A driver that is gone explains everything, a lost call more than a refused one."""
    return (2 if isinstance(error, Unusable) else 0) + isinstance(error, DeadlineError)


def failed(
    method: str, calls: Calls, failures: dict[int, GpusnapError], within_us: int = 0
) -> GpusnapError:
    """Choose the error to raise, with the states read back and the other failures as details.

    Args:
        method: The call that failed.
        calls: To read the states back.
        failures: What each process answered; not empty.
        within_us: How long the driver may still be at it.
    """
    states = calls.read_back(tuple(failures), within_us or calls.deadlines.answer_us)
    pid = max(sorted(failures), key=lambda pid: _weight(failures[pid]))
    error = failures[pid]
    others = [other.text for number, other in failures.items() if number != pid]
    now = [f"Process {number} is {state} in the driver" for number, state in states.items()]
    error.details = (*error.details, *others, *now)
    if isinstance(error, DeviceError):
        error.state = states.get(pid)
    if isinstance(error, DeadlineError) and error.cure is None:
        error.cure = _CURES.get(method)
    return error


_CURES = {
    "checkpoint": "Jobs that use NCCL need NCCL_NVLS_ENABLE=0; then see the kernel log for NVRM",
    "restore": "See the kernel log for NVRM; gpusnap recover tries again by state",
}
