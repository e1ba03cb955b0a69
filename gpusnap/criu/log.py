"""The decisive line of a CRIU log, as one sentence with a cure.

CRIU reports a failure by many lines: harmless ones before it, consequences after it. The
decisive one is the first error that :data:`gpusnap.criu.meanings.MEANINGS` knows, else the
first that is neither harmless nor a consequence.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
import psutil

from gpusnap.criu.meanings import MEANINGS, Meaning
from gpusnap.errors import CriuError, NotFoundError
from gpusnap.target import read_status

MARK = re.compile(r"(?:^|\s)Error \(([^)]*)\): ")
NOISE = re.compile(
    r"rlimit: Can't setup RLIMIT_NOFILE"
    r"|(?:Dumping|Restoring) FAILED"
    r"|\d+ (?:exited, status=|killed by signal|stopped by signal)"
    r"|Unable to detach from"
    r"|RPC client reported script error"
    r"|\(pid: \d+\) failed with -?\d+$"
)
"""Errors that say nothing by themselves: harmless, or the echo of another."""
LONGEST_LOG = 256 << 20
"""Bytes of a log that are read: its end, since that is where a failure stands."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a log says.

    Attributes:
        text: One sentence.
        cure: What the user can do, or None.
        line: The line that says it, None if no line does.
        name: Which meaning it has, None if it is not in the table.
    """

    text: str
    cure: str | None
    line: str | None
    name: str | None


def explain_failure(log: Path, output: str) -> CriuError:
    """The error that a failed CRIU stands for.

    Args:
        log: Its log, which may not exist.
        output: What it wrote beside its log, before it opened it.
    """
    verdict = classify([*read_lines(log), *output.splitlines()])
    # Where the log lies is told by whoever keeps it: it moves once the work folder goes.
    details = [verdict.line] if verdict.line else []
    return CriuError(verdict.text, cure=verdict.cure, details=details)


def classify(lines: Iterable[str]) -> Verdict:
    """Find the decisive line of a log and say what it means."""
    kept = [line.strip() for line in lines]
    errors = [line for line in kept if MARK.search(line)]
    return (
        _first_known(errors, [each for each in MEANINGS if not each.beside_errors])
        or _first_known(kept, [each for each in MEANINGS if each.beside_errors])
        or _unknown(errors)
    )


def _first_known(lines: list[str], meanings: list[Meaning]) -> Verdict | None:
    for line in lines:
        for meaning in meanings:
            if match := meaning.words.search(line):
                return _verdict(meaning, match, line)
    return None


def _verdict(meaning: Meaning, match: re.Match[str], line: str) -> Verdict:
    facts = match.groupdict(default="")
    # CRIU names some files from the root on without its slash
    facts |= {"path": facts.get("path", "").lstrip("/")}
    text = meaning.text.format(**facts)
    if meaning.name in {"pid-taken", "not-seized"}:
        text += _about(int(facts["pid"]))
    cure = meaning.cure.format(**facts) if meaning.cure else None
    return Verdict(text=text, cure=cure, line=line, name=meaning.name)


def _unknown(errors: list[str]) -> Verdict:
    telling = [line for line in errors if not NOISE.search(line)]
    if not telling:
        return Verdict(text="CRIU failed without saying why", cure=None, line=None, name=None)
    said = MARK.split(telling[0])[-1]
    return Verdict(text=f"CRIU failed: {said}", cure=None, line=telling[0], name=None)


def _about(pid: int) -> str:
    """What a process is at this moment, as far as it explains that CRIU could not have it."""
    try:
        process = psutil.Process(pid)
        name, status = process.name(), process.status()
        parent = process.ppid()
    except psutil.NoSuchProcess:
        return ", and is gone by now"
    if status == psutil.STATUS_ZOMBIE:
        return f": it is {name}, which has ended and waits for PID {parent} to collect it"
    if tracer := _tracer(pid):
        return f": it is {name}, which PID {tracer} ({_name(tracer)}) is tracing"
    return f": it is {name}"


def _tracer(pid: int) -> int:
    try:
        return int(read_status(pid).get("TracerPid", 0))
    except (NotFoundError, OSError):
        return 0


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return "gone"


def read_lines(log: Path) -> list[str]:
    """The lines of a log; none where it does not exist or cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LONGEST_LOG))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
