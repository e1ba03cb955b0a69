"""Driver calls for processes, made in the worker and answered in gpusnap's own words."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from gpusnap.errors import (
    DeadlineError,
    DeviceError,
    GpusnapError,
    NoBackendError,
    NotFoundError,
)
from gpusnap.target import read_maps
from gpusnap.types import Device, DeviceState
from gpusnap.worker import Worker, WorkerDied, WorkerError
from gpusnap_nvidia.results import INVALID_VALUE, explain
from gpusnap_nvidia.uses import Use

T = TypeVar("T")

_SETTLE_STEP_S = 0.05
_IN_TRANSIT = frozenset({DeviceState.CHECKPOINTING, DeviceState.RESTORING})


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long the driver may take before a call counts as lost.

    Attributes:
        answer_us: For calls that move nothing. The first one also loads the driver, which
            takes seconds where persistence mode is off.
        move_us: For calls that move device memory, beside the time the bytes take.
        bytes_per_second: Rate below which a move counts as stuck: far below what the driver
            reaches even into memory that the machine has never used.
    """

    answer_us: int = 60_000_000
    move_us: int = 60_000_000
    bytes_per_second: int = 500_000_000

    def moving(self, size: int) -> int:
        """Deadline in microseconds for a call that moves ``size`` bytes."""
        return self.move_us + size * 1_000_000 // self.bytes_per_second


class CallFailed(DeviceError):
    """The driver answered a call with an error.

    Attributes:
        code: The ``CUresult``.
    """

    def __init__(self, text: str, *, pid: int, code: int, cure: str | None) -> None:
        super().__init__(text, pid=pid, cure=cure)
        self.code = code


class Unusable(NoBackendError):
    """The driver as a whole cannot be used; the text says why."""


_CUDA_CURE = "Install NVIDIA driver 570 or newer"


def _unusable(error: WorkerError) -> Unusable | None:
    """What stands in the way of every call, or None where only this one failed."""
    detail = ", ".join(map(str, error.value))
    if error.kind == "LibcudaMissing":
        return Unusable(f"The CUDA driver library cannot be opened: {detail}", cure=_CUDA_CURE)
    if error.kind == "FunctionMissing":
        text = f"The CUDA driver cannot checkpoint processes: it has no {error.value[0]}"
        return Unusable(text, cure=_CUDA_CURE)
    if error.kind == "NvmlMissing":
        return Unusable(f"NVML cannot be used: {detail}", cure="See nvidia-smi")
    if error.kind == "CudaError" and error.value[2] == "cuInit":
        return Unusable(f"The CUDA driver does not start: {error.text}", cure="See nvidia-smi")
    return None


def _failure(method: str, pid: int, error: GpusnapError) -> GpusnapError:
    """The error of one process's call, in terms of that process."""
    if isinstance(error, DeadlineError):
        return DeadlineError(f"{error.text} for process {pid}", cure=error.cure)
    if isinstance(error, WorkerError) and error.kind == "LockedTooLate":
        return DeadlineError(error.text)
    if isinstance(error, WorkerDied):
        return DeviceError(f"{error.text} during the {method} of process {pid}", pid=pid)
    if isinstance(error, WorkerError) and error.kind == "CudaError":
        code, name, _ = msgspec.convert(error.value, tuple[int, str, str])
        meaning = explain(method, code, name, pid)
        return CallFailed(meaning.text, pid=pid, code=code, cure=meaning.cure)
    return error


def _hidden(pid: int, failure: CallFailed) -> bool:
    """Whether the driver may know a process and did not tell its state."""
    try:
        return failure.code != INVALID_VALUE and bool(read_maps(pid))  # none: it is ending
    except NotFoundError:
        return False


class Calls:
    """The driver of this machine, through one worker process."""

    def __init__(self, worker: Worker, deadlines: Deadlines) -> None:
        self._worker = worker
        self.deadlines = deadlines

    def _ask(self, kind: type[T], method: str, /, *, deadline_us: int, **arguments: object) -> T:
        try:
            answer = self._worker.call(method, deadline_us=deadline_us, **arguments)
        except WorkerError as error:
            raise _unusable(error) or error from None
        return msgspec.convert(answer, kind)

    def cuda_version(self) -> int:
        """CUDA version of the driver: 13000 for 13.0."""
        return self._ask(int, "cuda_version", deadline_us=self.deadlines.answer_us)

    def driver_version(self) -> str | None:
        """The driver's version, such as 580.159.04."""
        version = self._ask(object, "driver_version", deadline_us=self.deadlines.answer_us)
        return None if version is None else str(version)

    def devices(self) -> tuple[Device, ...]:
        """All devices in NVML's order."""
        return self._ask(tuple[Device, ...], "devices", deadline_us=self.deadlines.answer_us)

    def uses(self) -> tuple[Use, ...]:
        """Which process uses which device."""
        return self._ask(tuple[Use, ...], "uses", deadline_us=self.deadlines.answer_us)

    def with_restore_thread(self, pids: Sequence[int]) -> tuple[int, ...]:
        """Those of the processes that have device state of their own."""
        answer = self.deadlines.answer_us
        kind = tuple[int, ...]
        return self._ask(kind, "with_restore_thread", deadline_us=answer, pids=list(pids))

    def state(self, pid: int) -> DeviceState:
        """State of one process.

        Raises:
            CallFailed: The driver does not know it.
        """
        try:
            answer = self.deadlines.answer_us
            return self._ask(DeviceState, "state", deadline_us=answer, pid=pid)
        except Unusable:
            raise
        except GpusnapError as error:
            raise _failure("state", pid, error) from None

    def states(self, pids: Sequence[int], *, all_living: bool = False) -> dict[int, DeviceState]:
        """States of the processes that the driver knows.

        Args:
            pids: The processes.
            all_living: Whether it is an error that it does not tell that of one that lives.
        """
        found, failures = self._at_once(self.state, pids)
        for pid, failure in failures.items():
            if not isinstance(failure, CallFailed) or (all_living and _hidden(pid, failure)):
                raise failure
        return found

    def read_back(self, pids: Sequence[int], within_us: int) -> dict[int, DeviceState]:
        """States after calls whose outcome is unknown: waits while the driver is still at it.

        What cannot be read is left out.
        """
        end = time.monotonic() + within_us / 1e6
        while True:
            found, _ = self._at_once(self.state, pids)
            if _IN_TRANSIT.isdisjoint(found.values()) or time.monotonic() > end:
                return found
            time.sleep(_SETTLE_STEP_S)

    def each(
        self, method: str, pids: Sequence[int], deadline_us: int, **arguments: object
    ) -> dict[int, GpusnapError]:
        """Make one call for every process, all at once.

        Returns:
            The errors of those that failed.
        """

        def call(pid: int) -> None:
            try:
                self._ask(object, method, deadline_us=deadline_us, pid=pid, **arguments)
            except Unusable:
                raise
            except GpusnapError as error:
                raise _failure(method, pid, error) from None

        return self._at_once(call, pids)[1]

    @staticmethod
    def _at_once(
        function: Callable[[int], T], pids: Sequence[int]
    ) -> tuple[dict[int, T], dict[int, GpusnapError]]:
        """Call a function for all processes in threads: their answers, and their errors."""
        answers: dict[int, T] = {}
        failures: dict[int, GpusnapError] = {}

        def run(pid: int) -> None:
            try:
                answers[pid] = function(pid)
            except GpusnapError as error:
                failures[pid] = error

        with ThreadPoolExecutor(max_workers=max(1, len(pids))) as threads:
            list(threads.map(run, pids))
        return answers, failures

    def close(self) -> None:
        """End the worker process."""
        self._worker.close()
