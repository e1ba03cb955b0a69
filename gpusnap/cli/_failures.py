"""What every error becomes on the command line: a sentence, a cure, an exit code."""

import errno
import os
import signal
from collections.abc import Iterable

import click

from gpusnap.cli._messages import Failure, failure_of
from gpusnap.errors import (
    ERROR_OF_CODE,
    EXIT_OK,
    EXIT_WARNINGS,
    GpusnapError,
    PrivilegeError,
    TargetError,
    UsageError,
)
from gpusnap.types import Finding, Severity

BROKEN_PIPE = 128 + signal.SIGPIPE
_WRONG_PATH = frozenset(
    {
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
    }
)
"""What the kernel says of a path that can never be right."""


def _one_line(text: str) -> str:
    return " ".join(text.split()).removesuffix(".")


def _usage_failure(error: click.ClickException, command: str) -> Failure:
    context = getattr(error, "ctx", None)
    path = context.command_path if isinstance(context, click.Context) else command
    return Failure(
        code=UsageError.exit_code,
        text=_one_line(error.format_message()),
        cure=f"See {path} --help",
    )


def refused_path(text: str, error: OSError, cure: str) -> GpusnapError:
    """What it means that a file or folder that the user named cannot be used.

    Args:
        text: The sentence; what the kernel said is put behind it.
        error: What it said.
        cure: What the user can do.
    """
    kind = GpusnapError
    if isinstance(error, PermissionError):
        kind = PrivilegeError
    elif error.errno in _WRONG_PATH:
        kind = UsageError
    return kind(f"{text}: {error.strerror}", cure=cure)


def debugging() -> bool:
    """True where tracebacks are wanted."""
    return os.environ.get("GPUSNAP_DEBUG", "") not in {"", "0"}


def describe(error: Exception, command: str) -> Failure:
    """The last line for an error, where ``command`` was typed, such as ``gpusnap list``."""
    match error:
        case GpusnapError():
            return failure_of(error)
        case click.ClickException():
            return _usage_failure(error, command)
        case MemoryError():
            return Failure(code=1, text="gpusnap ran out of memory")
    said = _one_line(str(error))
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return Failure(
        code=1,
        text=f"gpusnap failed unexpectedly: {what} (run with GPUSNAP_DEBUG=1 for the traceback)",
    )


def exit_code_of(findings: Iterable[Finding], default: type[GpusnapError] = TargetError) -> int:
    """The code gpusnap exits with where checks found this: that of the first error.

    Args:
        findings: What was found.
        default: Class of an error whose code has none of its own.
    """
    found = tuple(findings)
    for finding in found:
        if finding.severity is Severity.ERROR:
            return ERROR_OF_CODE.get(finding.code, default).exit_code
    warned = any(finding.severity is Severity.WARNING for finding in found)
    return EXIT_WARNINGS if warned else EXIT_OK
