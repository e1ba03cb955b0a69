"""The helper's own side: ``python -m gpusnap.inprocess.helper serve`` or ``recover PID``.

It runs the ordinary checkpoint of a target from outside, and writes what came of it into the
mailbox of the program that asked for it.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from gpusnap.checkpoint import run_checkpoint
from gpusnap.errors import BusyError, GpusnapError, TargetError, refuse
from gpusnap.findings import check_privileges
from gpusnap.inprocess.answers import saved
from gpusnap.inprocess.messages import Reply, Request
from gpusnap.inprocess.outside import POLL_S
from gpusnap.jobs.record import read_run
from gpusnap.jobs.snapshots import take
from gpusnap.journal import Task, entries
from gpusnap.mailbox import Answer, Failure, Mailbox, MailboxState, read_state, write_answer
from gpusnap.nested import in_namespace_of_its_own
from gpusnap.plan import CheckpointOptions
from gpusnap.recovery import recover
from gpusnap.repository import Snapshot, require_intact
from gpusnap.target import find_target


def main(arguments: list[str]) -> None:
    """Do what the command line says; the reply goes to standard output."""
    _be_ordinary()
    match arguments:
        case ["serve"]:
            _serve()
        case ["recover", pid]:
            _say(_recover(int(pid)))


def _serve() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        # Without these not even the answer could be written
        refuse(tuple(check_privileges()))
    except GpusnapError as error:
        _say(Reply(failure=Failure.of(error)))
        return
    parent = os.getpid()
    child = os.fork()
    if child:
        _say(Reply(helper=child))
        return
    _leave(parent)
    with contextlib.suppress(GpusnapError):  # the program has ended, with --kill by intention
        if _is_wanted(request.mailbox):
            write_answer(request.mailbox.pid, request.mailbox, _answer(request))


def _say(reply: Reply) -> None:
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(reply))
    sys.stdout.flush()


def _leave(parent: int) -> None:
    """Have nothing in common with the program, which goes on once the pipes to it are closed."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
    while os.getppid() == parent:  # it is of the program's tree, and about to end
        time.sleep(0.001)


def _be_ordinary() -> None:
    """Handle signals as gpusnap does elsewhere, whatever the program blocks or ignores."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _is_wanted(mailbox: Mailbox) -> bool:
    """Wait until the program knows its helper; False if it was interrupted before that.

    Raises:
        IntegrityError: It has ended, or asks somebody else by now.
    """
    while (state := read_state(mailbox.pid, mailbox)) is MailboxState.ASKING:
        time.sleep(POLL_S)
    return state is MailboxState.WAITING


def _answer(request: Request) -> Answer:
    try:
        return saved(_save(request))
    except Exception as error:  # noqa: BLE001 - whatever it is, the program waits
        return Answer(outcome="failed", failure=Failure.of(_known(error)))


def _known(error: Exception) -> GpusnapError:
    if isinstance(error, GpusnapError):
        return error
    return GpusnapError(f"gpusnap failed unexpectedly: {type(error).__name__}: {error}")


def _save(request: Request) -> Snapshot:
    pid = request.mailbox.pid
    options = msgspec.structs.replace(request.options, mailbox=request.mailbox)
    if request.run is None:
        snapshot = _checkpoint_when_free(request, options)
    else:
        folder = Path(request.run)
        snapshot = take(
            folder,
            _root(folder, pid),
            tags=options.tags,
            leave_running=options.leave_running,
            timeout_us=options.timeout_us,
            mailbox=options.mailbox,
            first=options.first,
        )
    if request.read_back:
        require_intact(snapshot, lambda *_: None)
    return snapshot


def _checkpoint_when_free(request: Request, options: CheckpointOptions) -> Snapshot:
    """Let a checkpoint of the program from outside end, such as the one of a run's interval."""
    pid, refused = request.mailbox.pid, False
    while True:
        try:
            return run_checkpoint(
                pid, request.output_path, repository=request.repository, options=options
            )
        except BusyError:
            held = _is_being_saved(pid)
            if refused and not held:
                raise
            refused = not held  # the other may have ended between the refusal and the look
            time.sleep(POLL_S)


def _is_being_saved(pid: int) -> bool:
    return any(
        held and entry.task is Task.CHECKPOINT and pid in entry.pids for entry, held in entries()
    )


def _root(folder: Path, pid: int) -> int:
    """The root of a run's job, of which the program may be a part alone.

    Raises:
        TargetError: It is none.
    """
    if in_namespace_of_its_own(pid):
        # PIDs there say nothing of the run's job, which may even have the same ones
        raise TargetError(
            f"Process {pid} was restored with PIDs of its own, and the run {folder.name} "
            "cannot tell whether it is its job",
            cure="Name the snapshot: checkpoint_self(path)",
        )
    root = read_run(folder).root
    if root is None or pid not in find_target(root.pid).pids:
        raise TargetError(
            f"Process {pid} is no process of the run {folder.name}, as its GPUSNAP_RUN says",
            cure="Unset GPUSNAP_RUN where the program is started",
        )
    return root.pid


def _recover(pid: int) -> Reply:
    try:
        found = recover(pid)
    except GpusnapError as error:
        return Reply(failure=Failure.of(error))
    mine = [each for each in found if pid in each.pids]
    if failed := [each.outcome for each in mine if each.failed]:
        left = GpusnapError(failed[0], cure="Run gpusnap recover")
        return Reply(failure=Failure.of(left))
    return Reply(text="; ".join(each.outcome for each in mine))


if __name__ == "__main__":
    main(sys.argv[1:])
