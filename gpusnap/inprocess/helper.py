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

from gpusnap.errors import GpusnapError, TargetError, refuse
from gpusnap.findings import check_privileges
from gpusnap.folders import default_repository
from gpusnap.inprocess.messages import Reply, Request
from gpusnap.inprocess.outside import POLL_S
from gpusnap.inprocess.serving import answered, carry_out, failed
from gpusnap.jobs.control import ask
from gpusnap.jobs.record import RUN_VARIABLE
from gpusnap.mailbox import Answer, Failure, Mailbox, MailboxState, read_state, write_answer
from gpusnap.nested import in_namespace_of_its_own
from gpusnap.recovery import recover


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
    pid = request.mailbox.pid
    try:
        told = _ask_run(request) if in_namespace_of_its_own(pid) else None
    except Exception as error:  # noqa: BLE001 - whatever it is, the program waits
        return failed(error)
    return told or answered(lambda: carry_out(request, pid))


def _ask_run(request: Request) -> Answer | None:
    """Have the run save its job: PIDs here say nothing of that, which may even have the same ones.

    Raises:
        TargetError: The snapshot would be the run's, but the run does not make it.
    """
    named = request.run or os.environ.get(RUN_VARIABLE)
    if named is None:
        return None
    folder, pid, mailbox = Path(named), request.mailbox.pid, request.mailbox
    told = ask(folder, _placed(request), lambda: read_state(pid, mailbox))
    answer = None if told is None else told.answer
    if request.run is None or answer is not None:
        return answer
    who = f"Process {pid} was restored with PIDs of its own"
    if told is None:
        raise TargetError(
            f"{who}, and nobody supervises the run {folder.name}, who could save it",
            cure=f"Start gpusnap run --name {folder.name} outside again, or name the snapshot: "
            "checkpoint_self(path)",
        )
    raise TargetError(
        f"{who}, and is another copy than the job of the run {folder.name}",
        cure="Name the snapshot: checkpoint_self(path)",
    )


def _placed(request: Request) -> Request:
    """The same for a reader with another working folder and another environment."""
    path, repository = request.output_path, request.repository
    if path is not None and "/" in path:
        path = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - a name stays as it is
    elif request.run is None:
        repository = repository or str(default_repository())
    if repository is not None:
        repository = os.path.abspath(repository)  # noqa: PTH100 - links stay links
    return msgspec.structs.replace(request, output_path=path, repository=repository)


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
