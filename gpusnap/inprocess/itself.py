"""A program's checkpoint of itself: a call that returns in two programs, as fork does."""

import contextlib
import operator
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from gpusnap.arguments import check_timeout
from gpusnap.datapath import Compression
from gpusnap.errors import BusyError, CallbackError, GpusnapError, TargetError, UsageError
from gpusnap.inprocess import outside
from gpusnap.inprocess.box import own_box
from gpusnap.inprocess.callbacks import Moment, run_after, run_before
from gpusnap.inprocess.messages import Request
from gpusnap.inprocess.torch_state import is_capturing, wait_for_devices
from gpusnap.mailbox import Answer
from gpusnap.plan import DEFAULT_TIMEOUT_US, CheckpointOptions, choose_saving
from gpusnap.repository import Manifest, check_tags, open_snapshot
from gpusnap.target import myself

RUN_VARIABLE = "GPUSNAP_RUN"

_ATTEMPTS = 20
"""How many interruptions putting the program right again withstands."""
_ADDRESSES = 1 << 63

_saving: set[int] = set()
"""This process while it is being saved: a PID, since a child that is forked then is not."""


class Checkpointed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a program's checkpoint of itself, in one of the two programs.

    Attributes:
        outcome: ``saved`` in the program that runs on, ``restored`` in one that was brought back.
        snapshot: Name of the snapshot.
        path: Its folder, absolute, as whoever saved or restored it saw it.
        devices: UUIDs of the devices in use now; empty where the backend does not tell.
        overrides: What ``gpusnap restore --set`` hands over; nothing where it was saved.
    """

    outcome: Literal["saved", "restored"]
    snapshot: str
    path: Path
    devices: tuple[str, ...] = ()
    overrides: dict[str, str] = {}

    @property
    def saved(self) -> bool:
        """True in the program that runs on."""
        return self.outcome == "saved"

    @property
    def restored(self) -> bool:
        """True in a program that was brought back."""
        return self.outcome == "restored"

    @property
    def name(self) -> str:
        """The name of the snapshot, as a :class:`gpusnap.Snapshot` has it."""
        return self.snapshot

    @property
    def manifest(self) -> Manifest:
        """What is known of the snapshot, read now.

        Raises:
            GpusnapError: It is not there any more, or damaged.
        """
        return open_snapshot(self.path).manifest


def checkpoint_self(  # noqa: PLR0913 - the public call, all by keyword
    output_path: str | Path | None = None,
    *,
    kill: bool = False,
    timeout: float = DEFAULT_TIMEOUT_US / 1e6,
    incremental: bool | None = None,
    compress: str | bool = Compression.AUTO.value,
    parallel_workers: int | None = None,
    gpu_sync: bool = False,
    first: Sequence[tuple[int, int]] = (),
    tags: Collection[str] = (),
) -> Checkpointed:
    """Save this program and the processes below it, CPU and device state together.

    The call returns twice: in this program once the snapshot is complete, and in each program
    that is restored from it. Only the main thread may call it, and it waits; other threads run
    on, but for the time in which the program stands still.

    Under ``gpusnap run``, and without ``output_path``, the snapshot is the run's next one. Where
    to, ``incremental``, ``compress`` and ``parallel_workers`` are then as the run has them.

    Args:
        output_path: Path or name of the snapshot; None makes up a name.
        kill: End this program once its snapshot is complete: the call then returns only where
            it is restored.
        timeout: Seconds that CRIU may take.
        incremental: Store only memory that the newest snapshot of this program does not have.
        compress: How memory is compressed: ``auto``, ``none``, ``lz4`` or ``zstd``; True is
            ``auto``, False ``none``.
        parallel_workers: Threads that save memory; None for one a CPU.
        gpu_sync: Wait for the work of all devices that PyTorch uses before anything else, and
            read the snapshot back before the call returns: every file is compared with its
            checksum, memory with the CRC-32 that was taken as it left the program. With
            ``kill`` nobody is left to hear of damage, which a restore finds as well.
        first: Memory of this program that is saved first, as addresses and lengths in bytes.
        tags: Words to list and to keep the snapshot by, without commas and spaces.

    Returns:
        Which of the two programs this is, and what is known there.

    Raises:
        UsageError: From another thread than the main one, while a CUDA graph is captured, or
            with an argument that can never be right.
        BusyError: During a checkpoint that this program has already asked for.
        CallbackError: A function that the program registered failed.
        GpusnapError: It could not be saved; the program runs on.
    """
    options = CheckpointOptions(
        leave_running=not kill,
        timeout_us=_microseconds(timeout),
        saving=choose_saving(compress, workers=parallel_workers, incremental=bool(incremental)),
        tags=check_tags(tags),
        first=_ranges(first),
    )
    return save_self(options, output_path, gpu_sync=gpu_sync)


def _microseconds(timeout: float) -> int:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise UsageError(f"timeout is {timeout!r}, not a number of seconds")
    return check_timeout("timeout", round(timeout * 1e6))


def _ranges(first: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    try:
        found = tuple((operator.index(address), operator.index(size)) for address, size in first)
    except (TypeError, ValueError):
        raise UsageError("first holds something else than addresses with lengths") from None
    for address, size in found:
        if not (0 <= address < _ADDRESSES and 0 <= size < _ADDRESSES):
            raise UsageError(f"No process has {size} bytes of memory at {address:#x}")
    return found


def save_self(
    options: CheckpointOptions,
    output_path: str | Path | None = None,
    *,
    repository: str | Path | None = None,
    gpu_sync: bool = False,
) -> Checkpointed:
    """Save this program; see :func:`checkpoint_self`, here with the options struct."""
    check_caller()
    _refuse_init()
    with _alone():
        try:
            run_before()
            if gpu_sync:
                wait_for_devices()
            request = Request(
                mailbox=own_box().ask(),
                options=options,
                output_path=None if output_path is None else str(output_path),
                repository=None if repository is None else str(repository),
                run=os.environ.get(RUN_VARIABLE) if output_path is repository is None else None,
                read_back=gpu_sync,
            )
            result = _result(_ask(request))
        except BaseException as error:
            _run_after_failure(error)
            raise
        _run_after(result)
    return result


def check_caller() -> None:
    """See that a program asks where it may.

    Raises:
        UsageError: It asks in another thread than the main one, or while a graph is captured.
    """
    if threading.current_thread() is not threading.main_thread():
        name = threading.current_thread().name
        msg = f"The program asks for its checkpoint in thread {name}"
        raise UsageError(msg, cure="Do it in the main thread, where callbacks run too")
    if is_capturing():
        msg = "The program asks for its checkpoint while it captures a CUDA graph"
        raise UsageError(msg, cure="Do it before or after the capture")


def _refuse_init() -> None:
    if os.getpid() == 1:
        raise TargetError(
            "The first process of a container cannot be saved from within it",
            cure="Start the program with gpusnap run, or let it call gpusnap.step_aside() first",
        )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    me = os.getpid()
    if me in _saving:
        msg = "The program asks for its checkpoint while one of it is being made"
        raise BusyError(msg, cure="Do not do it in a callback or in a signal handler")
    try:
        _saving.add(me)
        yield
    finally:
        _saving.discard(me)


def _run_after(result: Checkpointed) -> None:
    try:
        run_after(Moment.AFTER if result.saved else Moment.RESTORED, result)
    except CallbackError as error:
        done = "is complete" if result.saved else "is the one that was restored"
        error.details += (f"The snapshot {result.path} {done}",)
        raise


def _run_after_failure(error: BaseException) -> None:
    """Have the program put in place again what it took apart; the first error stays the one."""
    try:
        run_after(Moment.AFTER, None)
    except GpusnapError as another:
        _add(error, another.text, *another.details)


def _add(error: BaseException, *lines: str) -> None:
    if isinstance(error, GpusnapError):
        error.details += lines
    else:
        for line in lines:
            error.add_note(line)


def _result(answer: Answer) -> Checkpointed:
    path = Path(answer.path)
    if answer.outcome == "failed":
        raise _failure(answer)
    return Checkpointed(
        outcome=answer.outcome,
        snapshot=path.name,
        path=path,
        devices=answer.devices,
        overrides=answer.overrides,
    )


def _failure(answer: Answer) -> GpusnapError:
    assert answer.failure is not None  # noqa: S101 - the helper's answers have one
    return answer.failure.error()


def _ask(request: Request) -> Answer:
    """Have this program saved; it goes on here, and in each program that is restored."""
    try:
        while (answer := _try(request)) is None:
            request = msgspec.structs.replace(request, mailbox=own_box().ask())
        return answer
    finally:
        own_box().close()


def _try(request: Request) -> Answer | None:
    """Have a helper save this program. Here it is frozen, and here it goes on, twice.

    Returns:
        The answer; None where a snapshot that somebody else made brought the program back as it
        waited, and nobody works for it any more.
    """
    me = myself()
    helper = outside.start(request)
    try:
        own_box().wait()
        answer = _await(helper)
    except BaseException as error:
        if own_box().read() is None:  # after Ctrl-C, for example
            _put_right(helper, error)
        raise
    if answer is None and myself() == me:
        raise _killed(helper)
    return answer


def _await(helper: outside.Helper) -> Answer | None:
    while (answer := own_box().read()) is None:
        if not helper.alive():
            # In a restored program it is not there either; but then there is an answer
            return own_box().read()
        time.sleep(outside.POLL_S)
    return answer


def _killed(helper: outside.Helper) -> GpusnapError:
    """The error for a helper that was killed, with what became of the devices."""
    error = GpusnapError(
        f"gpusnap was killed while it saved this program (process {helper.pid})",
        cure="See in the kernel's log why; gpusnap list shows whether the snapshot is complete",
    )
    _put_right(helper, error)
    return error


def _put_right(helper: outside.Helper, error: BaseException) -> None:
    """End the helper, and get the devices back that it has left saved.

    What interrupts that, such as a second Ctrl-C, takes effect afterwards.
    """
    interruption: BaseException | None = None
    for _ in range(_ATTEMPTS):
        try:
            helper.end()
            outcome = outside.recover()
        except GpusnapError as failed:
            _add(error, failed.text)
            if isinstance(error, GpusnapError):
                error.cure = failed.cure
        except BaseException as another:  # noqa: BLE001 - whatever a signal's handler raises
            interruption = another
            continue
        else:
            if outcome and isinstance(error, GpusnapError):
                error.details += (outcome,)
        break
    if interruption is not None:
        raise interruption
