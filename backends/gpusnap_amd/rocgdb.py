"""What AMD's debugger sees of a process: its queues, and the waves that run.

The debugger stops the process, and a dump needs the place that it takes. So it has a deadline,
and is gone before this module's function returns. Words of its tables after ROCgdb's manual.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator

from gpusnap.types import Finding, Severity

VARIABLE = "GPUSNAP_ROCGDB_TOOL"
"""Environment variable that names the debugger."""

_PLACES = ("rocgdb", "/opt/rocm/bin/rocgdb")
_DEADLINE_S = 10.0
_GRACE_S = 5.0
"""How long it may take to let the process go once it was told to end."""
_COMMANDS = ("info agents", "info queues", "info dispatches", "info threads", "detach")
_AGENT = re.compile(r"AMDGPU Agent \(GPUID \d+\)")
_QUEUE = re.compile(r"AMDGPU Queue [\d:]+ \(QID \d+\)")
_DISPATCH = re.compile(r"AMDGPU Dispatch [\d:]+ \(PKID \d+\)")
_WAVE = re.compile(r"AMDGPU (?:Wave|Thread) [\d:]+")
_ATTACH_FAILED = re.compile(r"ptrace: .*|Could not attach to process.*|No such process.*")


class _NoAnswer(Exception):
    """Why the debugger told nothing, in a sentence."""


def diagnose(pid: int) -> tuple[Finding, ...]:
    """Have the debugger look at a process, which stands still meanwhile."""
    try:
        return tuple(_findings(pid, _ask(pid)))
    except _NoAnswer as reason:
        return (
            Finding(
                code="rocgdb-failed",
                severity=Severity.WARNING,
                text=str(reason),
                cure="A checkpoint does without rocgdb",
                pid=pid,
            ),
        )


def _findings(pid: int, output: str) -> Iterator[Finding]:
    queues, gpus = _count(_QUEUE, output), _count(_AGENT, output)
    waves, dispatches = _count(_WAVE, output), _count(_DISPATCH, output)
    yield Finding(
        code="rocgdb-queues",
        severity=Severity.INFO,
        text=f"Queues of process {pid} that rocgdb sees: {queues}, on {gpus} GPUs",
        pid=pid,
    )
    yield Finding(
        code="rocgdb-waves",
        severity=Severity.INFO,
        text=f"Waves of process {pid} that rocgdb sees: {waves}, of {dispatches} dispatches",
        pid=pid,
    )


def _count(pattern: re.Pattern[str], output: str) -> int:
    """Different ones: a table may name one that another has named."""
    return len(set(pattern.findall(output)))


def _tool() -> str:
    named = os.environ.get(VARIABLE)
    for place in (named,) if named else _PLACES:
        if found := shutil.which(place):
            return found
    raise _NoAnswer(f"There is no {named or 'rocgdb'} to look at the process with")


def _ask(pid: int) -> str:
    command = [_tool(), "--batch", "--nx", "--quiet", f"--pid={pid}"]
    for each in ("set pagination off", *_COMMANDS):
        command += ["--eval-command", each]
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        ) as process:
            output = _await(process)
    except OSError as error:
        raise _NoAnswer(f"rocgdb cannot be started: {error.strerror}") from error
    if failed := _ATTACH_FAILED.search(output):
        raise _NoAnswer(f"rocgdb could not attach to process {pid}: {failed[0].strip()}")
    if process.returncode != 0:
        raise _NoAnswer(f"rocgdb ended with exit code {process.returncode}")
    return output


def _await(process: "subprocess.Popen[str]") -> str:
    """Its output; past the deadline it is asked to let the process go, then ended."""
    try:
        return process.communicate(timeout=_DEADLINE_S)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        # The kernel lets go what a dead debugger has attached to
        process.kill()
    raise _NoAnswer(f"rocgdb did not answer within {_DEADLINE_S:g} s and was ended")
