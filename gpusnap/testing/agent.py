"""The driver's thread inside a target process, like CUDA's restore thread.

While it waits it holds neither descriptors nor mappings of the device, so that CRIU can dump
the process once it is checkpointed. It survives dump, kill and restore.
"""

import contextlib
import threading
import time

import msgspec

from gpusnap.errors import GpusnapError
from gpusnap.testing import transitions
from gpusnap.testing.context import Context
from gpusnap.testing.errors import OutOfMemoryError, SimulatedDeviceError, UnsupportedError
from gpusnap.testing.failures import DriverCall, FailureKind, take_failure
from gpusnap.testing.messages import Answer, Request, put_answer, take_request

POLL_SECONDS = 0.003


def start_agent(context: Context) -> threading.Thread:
    """Serve driver calls for as long as the process lives."""
    thread = threading.Thread(target=_serve, args=(context,), daemon=True, name="simulated-driver")
    thread.start()
    return thread


def _serve(context: Context) -> None:
    while True:
        time.sleep(POLL_SECONDS)
        # The machine's folder may be wiped at any instant: there is nobody to answer then.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            _serve_once(context)


def _serve_once(context: Context) -> None:
    context.keep_registered()
    request = take_request(context.folder)
    if request is None:
        return
    context.renew_owner()
    failure = take_failure(context.machine, request.call, context.owner.pid)
    if failure is FailureKind.HANG:
        return
    answer = _perform(context, request, failure)
    if failure is not FailureKind.LOST_ANSWER:
        put_answer(context.folder, request, answer)


def _perform(context: Context, request: Request, failure: FailureKind | None) -> Answer:
    try:
        _refuse(context, request, failure)
        _call(context, request)
    except SimulatedDeviceError as error:
        return Answer(error=type(error).__name__, text=error.text)
    except (GpusnapError, OSError) as error:
        return Answer(error=SimulatedDeviceError.__name__, text=str(error))
    return Answer()


def _refuse(context: Context, request: Request, failure: FailureKind | None) -> None:
    pid = context.owner.pid
    if failure is FailureKind.BUSY:
        time.sleep(request.timeout_us / 1e6)
        raise transitions.not_ready(context, request.timeout_us)
    if failure is FailureKind.UNSUPPORTED:
        msg = f"Process {pid} holds memory that cannot take part in a {request.call.value}"
        raise UnsupportedError(msg)
    if failure is FailureKind.OUT_OF_MEMORY:
        msg = f"There is no memory for the {request.call.value} of process {pid}"
        raise OutOfMemoryError(msg)


def _call(context: Context, request: Request) -> None:
    match request.call:
        case DriverCall.LOCK:
            transitions.lock(context, request.timeout_us)
        case DriverCall.CHECKPOINT:
            transitions.checkpoint(context)
        case DriverCall.RESTORE:
            transitions.restore(context, dict(request.pairs))
        case DriverCall.UNLOCK:
            transitions.unlock(context)
