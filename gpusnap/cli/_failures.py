"""What every error becomes on the command line: a sentence, a cure, an exit code."""

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
    TargetError,
    UsageError,
)
from gpusnap.types import Finding, Severity

BROKEN_PIPE = 128 + signal.SIGPIPE


def _one_line(text: str) -> str:
    return " ".join(text.split()).removesuffix(".")


def _usage_failure(error: click.ClickException) -> Failure:
    context = getattr(error, "ctx", None)
    path = context.command_path if isinstance(context, click.Context) else "gpusnap"
    return Failure(
        code=UsageError.exit_code,
        text=_one_line(error.format_message()),
        cure=f"See {path} --help",
    )


def debugging() -> bool:
    """True where tracebacks are wanted."""
    return os.environ.get("GPUSNAP_DEBUG", "") not in {"", "0"}


def describe(error: Exception) -> Failure:
    """The last line for an error."""
    match error:
        case GpusnapError():
            return failure_of(error)
        case click.ClickException():
            return _usage_failure(error)
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
