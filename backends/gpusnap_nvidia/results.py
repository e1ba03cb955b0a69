"""What the driver's answers mean: every ``CUresult`` gpusnap meets, in words and with a cure.

The same number means different things for different calls, so calls come first.
"""

from typing import NamedTuple

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
OPERATING_SYSTEM = 304
ILLEGAL_STATE = 401
NOT_READY = 600
NOT_SUPPORTED = 801
UNKNOWN = 999

NCCL_CURE = (
    "Start jobs of several processes with NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 "
    "NCCL_CUMEM_ENABLE=0 NCCL_IB_DISABLE=1, so that NCCL uses sockets"
)


class Meaning(NamedTuple):
    """A sentence with a place for the PID, and what helps."""

    text: str
    cure: str | None = None


_NCCL = Meaning(
    "The driver cannot restore process {pid}: it shares device memory with other processes, "
    "as NCCL does over NVLink and shared memory, and its device state is lost",
    NCCL_CURE,
)

_OF_CALL = {
    ("lock", NOT_READY): Meaning(
        "Process {pid} still had device work under way when the lock timed out",
        "Allow the lock more time, or try again when shorter kernels run",
    ),
    ("lock", ILLEGAL_STATE): Meaning(
        "Process {pid} cannot be locked: the driver does not have it as running",
        "Run gpusnap recover, or gpusnap resume {pid} if it was suspended",
    ),
    ("checkpoint", NOT_SUPPORTED): Meaning(
        "Process {pid} holds state the driver cannot checkpoint, such as managed memory "
        "(cudaMallocManaged)",
        "Use cudaMalloc or pinned host memory in the program instead",
    ),
    ("checkpoint", OUT_OF_MEMORY): Meaning(
        "The driver ran out of memory for the device state of process {pid}",
        "Free host memory; on a GPU split by MIG the driver says so for every process: turn "
        "MIG off",
    ),
    ("restore", OUT_OF_MEMORY): Meaning(
        "The device has too little free memory for the state of process {pid}",
        "Free device memory; see gpusnap ps",
    ),
    ("restore", OPERATING_SYSTEM): Meaning(
        "The driver cannot restore process {pid}, most likely for want of free device memory; "
        "it will refuse every later try too",
        "End the process, free device memory and restore it from a snapshot",
    ),
    ("restore", INVALID_VALUE): Meaning(
        "The driver cannot restore process {pid}: it holds memory of another process through "
        "CUDA IPC, or its devices were not all named",
        "Have the processes exchange data without CUDA IPC",
    ),
    ("restore", NOT_SUPPORTED): _NCCL,
    ("restore", UNKNOWN): _NCCL,
}

_OF_ANY_CALL = {
    INVALID_VALUE: Meaning("The driver knows no device state of process {pid}"),
    OPERATING_SYSTEM: Meaning(
        "The driver could not reach process {pid}",
        "Run gpusnap as the user of the process or as root, in the same PID namespace",
    ),
    ILLEGAL_STATE: Meaning(
        "Process {pid} is in a state that does not allow this call", "Run gpusnap recover"
    ),
}


def explain(method: str, code: int, name: str, pid: int) -> Meaning:
    """Say what an answer of the driver means.

    Args:
        method: The call: lock, checkpoint, restore, unlock or state.
        code: The ``CUresult``.
        name: Its name in CUDA's headers.
        pid: The process the call was for.

    Returns:
        A sentence that ends with the driver's own code, and a cure where there is one.
    """
    unknown = Meaning(f"The driver refused the {method} of process {{pid}}")
    meaning = _OF_CALL.get((method, code)) or _OF_ANY_CALL.get(code, unknown)
    cure = None if meaning.cure is None else meaning.cure.format(pid=pid)
    return Meaning(f"{meaning.text.format(pid=pid)} ({name}, {code})", cure)
