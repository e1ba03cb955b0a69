"""Which CRIU gpusnap runs, and why another was passed over."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from gpusnap.criu.log import classify
from gpusnap.criu.private import private_command, private_criu_directory
from gpusnap.errors import CriuError

CHECK_SECONDS = 30

Source = Literal["environment", "path", "private"]


class Criu(msgspec.Struct, frozen=True, kw_only=True):
    """A CRIU that passed its checks.

    Attributes:
        command: The arguments that start it, before its own.
        version: Major, minor, sublevel.
        source: Where it was found.
        path: What a person calls it: the program or the private folder.
    """

    command: tuple[str, ...]
    version: tuple[int, int, int]
    source: Source
    path: str

    @property
    def version_text(self) -> str:
        """The version as CRIU prints it, such as ``4.1.1`` or ``4.2``."""
        major, minor, sublevel = self.version
        return f"{major}.{minor}.{sublevel}" if sublevel else f"{major}.{minor}"


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """A CRIU that was looked at and passed over."""

    path: str
    reason: str


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The CRIU that is used, if any, and those looked at before it."""

    criu: Criu | None
    passed: tuple[Passed, ...] = ()


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A place to look at."""

    command: tuple[str, ...]
    source: Source
    path: str


class Unusable(Exception):
    """Why a candidate cannot be used."""


def search_criu() -> Search:
    """Look for a usable CRIU: ``GPUSNAP_CRIU``, then ``PATH``, then the private copy.

    ``GPUSNAP_CRIU`` is a decision: where it is set, nothing else is looked at. Nothing is
    remembered between calls, so that a CRIU installed meanwhile is seen.
    """
    passed: list[Passed] = []
    for candidate in _candidates():
        try:
            return Search(criu=examine(candidate), passed=tuple(passed))
        except Unusable as reason:
            passed.append(Passed(path=candidate.path, reason=str(reason)))
    return Search(criu=None, passed=tuple(passed))


def find_criu() -> Criu:
    """The CRIU that is used.

    Raises:
        CriuError: There is none; the details say what was passed over and why.
    """
    search = search_criu()
    if search.criu is not None:
        return search.criu
    if named := os.environ.get("GPUSNAP_CRIU"):
        raise CriuError(
            f"The CRIU that GPUSNAP_CRIU names cannot be used: {search.passed[0].reason}",
            cure="Correct GPUSNAP_CRIU, or unset it to let gpusnap look for a CRIU",
            details=[named],
        )
    raise CriuError(
        "No usable CRIU was found",
        cure="Run `gpusnap setup-criu`, which makes a private copy and changes nothing else",
        details=[f"{each.path}: {each.reason}" for each in search.passed],
    )


def examine(candidate: Candidate) -> Criu:
    """Look at one CRIU.

    CRIU's own check sees also a CRIU that is too old for the kernel: 3.17.1, on 6.13 or newer,
    fails it by the same line by which it would fail a dump.

    Raises:
        Unusable: It does not start or does not pass its own check.
    """
    version = _read_version(candidate.command)
    _run_own_check(candidate.command)
    return Criu(
        command=candidate.command, version=version, source=candidate.source, path=candidate.path
    )


def private_candidate(directory: Path) -> Candidate | None:
    """The private copy in ``directory`` as a place to look at; None where there is none."""
    command = private_command(directory.absolute())
    if command is None:
        return None
    return Candidate(command=command, source="private", path=str(directory))


def _candidates() -> Iterator[Candidate]:
    if named := os.environ.get("GPUSNAP_CRIU"):
        # A private copy carried over from another machine may be named by its folder
        command = private_command(Path(named).absolute()) or (_absolute(named),)
        yield Candidate(command=command, source="environment", path=named)
        return
    if found := shutil.which("criu"):
        yield Candidate(command=(_absolute(found),), source="path", path=found)
    if private := private_candidate(private_criu_directory()):
        yield private


def _absolute(program: str) -> str:
    """A program that is started from other folders, too; a mere name is looked up in ``PATH``."""
    return os.path.abspath(program) if os.sep in program else program  # noqa: PTH100 - no link read


def _read_version(command: tuple[str, ...]) -> tuple[int, int, int]:
    status, output = _run(command, "--version")
    match = re.search(r"^Version:\s*(\d+)\.(\d+)(?:\.(\d+))?", output, re.MULTILINE)
    if status != 0 or match is None:
        raise Unusable(f"It does not tell its version{_last_line(output)}")
    major, minor, sublevel = match.groups(default="0")
    return int(major), int(minor), int(sublevel)


def _run_own_check(command: tuple[str, ...]) -> None:
    if os.geteuid() != 0:
        return  # `criu check` answers only to root; whoever dumps asks again as root
    status, output = _run(command, "check")
    if status != 0:
        raise Unusable(f"`criu check` fails: {classify(output.splitlines()).text}")


def _run(command: tuple[str, ...], argument: str) -> tuple[int, str]:
    try:
        ended = subprocess.run(
            [*command, argument],
            # CRIU's check has the kernel watch the current folder, for which it goes through all
            # names there that it has in mind: of a busy /tmp for seconds
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=CHECK_SECONDS,
            check=False,
        )
    except OSError as error:
        raise Unusable(f"It cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Unusable(f"`criu {argument}` did not end within {CHECK_SECONDS} s") from error
    return ended.returncode, ended.stdout.decode(errors="replace")


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return f": {lines[-1].strip()[:200]}" if lines else ""
