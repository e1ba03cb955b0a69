"""Driver calls of the simulated backend: in a worker process, under deadlines, side by side."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpusnap.errors import DeadlineError, DeviceError, GpusnapError
from gpusnap.testing.driver import find_registration
from gpusnap.testing.errors import NotReadyError
from gpusnap.testing.failures import DriverCall
from gpusnap.testing.machine import Machine
from gpusnap.types import DeviceState
from gpusnap.worker import Worker, WorkerDied, WorkerError

_START_DEADLINE_US = 60_000_000
_BYTES_PER_SECOND = 20_000_000
"""Slower than any disk a machine may lie on: only scales the deadline."""


class DriverCalls:
    """Makes the calls of one backend."""

    def __init__(self) -> None:
        self._worker = Worker("gpusnap.testing.driver:Driver")

    def close(self) -> None:
        """End the worker process."""
        self._worker.close()

    def make(
        self,
        machine: Machine,
        pid: int,
        call: DriverCall,
        *,
        timeout_us: int | None = None,
        pairs: Sequence[tuple[str, str]] | None = None,
    ) -> None:
        """Make one call for one process.

        Raises:
            DeadlineError: Work was under way past the timeout, or the call did not return.
            DeviceError: The driver refused.
        """
        if self._worker.pid is None:  # a slow start must not count against the call
            self._worker.call("ready", deadline_us=_START_DEADLINE_US)
        extra: dict[str, object] = {}
        if timeout_us is not None:
            extra["timeout_us"] = timeout_us
        if pairs is not None:
            extra["pairs"] = pairs
        patience_us = machine.description.call_timeout_us
        deadline_us = 2 * patience_us + (timeout_us or 0) + _moving_us(machine, pid)
        try:
            self._worker.call(
                call.value,
                deadline_us=deadline_us,
                machine=str(machine.path),
                pid=pid,
                patience_us=patience_us,
                **extra,
            )
        except (DeadlineError, WorkerError, WorkerDied) as error:
            raise _translate(error, machine, pid) from None


def _moving_us(machine: Machine, pid: int) -> int:
    registration = machine.registration(pid)
    return registration.memory * 1_000_000 // _BYTES_PER_SECOND if registration else 0


def _translate(
    error: DeadlineError | WorkerError | WorkerDied, machine: Machine, pid: int
) -> GpusnapError:
    if isinstance(error, DeadlineError):
        return DeadlineError(f"{error.text} (process {pid})")
    if isinstance(error, WorkerError) and error.kind == NotReadyError.__name__:
        return DeadlineError(error.text, cure="Try again when its kernels are shorter")
    return DeviceError(error.text, pid=pid, state=read_state(machine, pid))


def read_state(machine: Machine, pid: int) -> DeviceState | None:
    """State of a process in the driver; None where the driver does not know it."""
    registration = find_registration(machine, pid)
    return registration.state if registration is not None else None


def call_each(pids: Sequence[int], call: Callable[[int], None]) -> list[GpusnapError]:
    """Call for all processes at once; returns the errors, in the order of the PIDs."""
    if not pids:
        return []
    with ThreadPoolExecutor(max_workers=len(pids)) as pool:
        futures = [pool.submit(call, pid) for pid in pids]
    errors = (future.exception() for future in futures)
    return [_expected(error) for error in errors if error is not None]


def _expected(error: BaseException) -> GpusnapError:
    if isinstance(error, GpusnapError):
        return error
    raise error


def raise_first(errors: Sequence[GpusnapError]) -> None:
    """Raise the first error, with the others as its details."""
    if not errors:
        return
    first, *others = errors
    first.details = (*first.details, *(other.text for other in others))
    raise first
