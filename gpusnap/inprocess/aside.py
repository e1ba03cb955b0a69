"""Makes room for a program that is the first process of a container.

Orphans become children of a PID namespace's first process: as long as that is the program, no
helper can leave its tree.
"""

import os
import signal
import sys
from typing import NoReturn

_NOT_PASSED_ON = {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU}


def step_aside() -> None:
    """Go on as another process, if this one is PID 1; call it first thing in the program.

    The first process stays behind as a small init: it reaps, passes signals on to the program
    and ends with its exit code, 128 and its number after a signal. Elsewhere nothing happens.
    """
    if os.getpid() != 1:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    if ignored:  # the kernel would reap, and nobody would hear of the program's end
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    program = os.fork()
    if program:
        _watch_over(program)
    if ignored:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # With a session of its own it has no terminal that only PID 1 could hold
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _watch_over(program: int) -> NoReturn:
    while True:
        number = signal.sigwait(signal.valid_signals())
        if number == signal.SIGCHLD:
            status = _reap(program)
            if status is not None:
                os._exit(_exit_code(status))
        elif number not in _NOT_PASSED_ON:
            os.kill(program, number)


def _reap(program: int) -> int | None:
    """Reap all that have ended; the wait status of the program if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == program:
            found = status


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
