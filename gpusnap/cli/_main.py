"""Runs one command line: whatever happens ends as a sentence and an exit code."""

import io
import os
import signal
import sys
from collections.abc import Sequence

from click.exceptions import Exit, NoArgsIsHelpError
from click.shell_completion import shell_complete

from gpusnap.cli._failures import BROKEN_PIPE, debugging, describe
from gpusnap.cli._group import root
from gpusnap.cli._interrupts import Interrupted, Interrupts
from gpusnap.cli._messages import Failure
from gpusnap.cli._options import PREFIX, wants_json
from gpusnap.cli._output import Output, ReaderGoneError
from gpusnap.errors import UsageError

_COMPLETION = f"_{PREFIX}_COMPLETE"
_NAME = "gpusnap"


def _command(arguments: Sequence[str]) -> str:
    """The command that was typed, without what belongs to it."""
    verb = next(iter(arguments), None)
    return f"{_NAME} {verb}" if verb in root.commands else _NAME


def _invoke(arguments: list[str], interrupts: Interrupts) -> int:
    with root.make_context(_NAME, arguments, obj=interrupts) as context:
        code = root.invoke(context)
    return code if isinstance(code, int) else 0


def _run(arguments: list[str], output: Output) -> int:
    interrupts = Interrupts()
    try:
        # In the block that catches it: a signal may come as soon as it is listened to
        with interrupts:
            return _invoke(arguments, interrupts)
    except Exit as done:
        return done.exit_code
    except NoArgsIsHelpError as error:
        output.usage(error.format_message())
        return UsageError.exit_code
    except (ReaderGoneError, BrokenPipeError):
        return BROKEN_PIPE
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        failure = interrupts.failure(number)
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets a sentence
        if debugging():
            output.traceback(error)
        failure = describe(error, _command(arguments))
    output.failure(failure)
    return failure.code


def _complete(instruction: str, output: Output) -> int:
    try:
        return shell_complete(root, {}, _NAME, _COMPLETION, instruction)
    except (KeyError, ValueError):
        text = f"{_COMPLETION} is set, but not by a shell that completes a command"
        output.failure(Failure(code=UsageError.exit_code, text=text, cure="Unset it"))
        return UsageError.exit_code


def _prepare_streams() -> None:
    """Let any text be printed, whatever the locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Args:
        arguments: What was typed after ``gpusnap``.

    Returns:
        The exit code.
    """
    typed = list(arguments)
    output = Output(json=wants_json(typed))
    _prepare_streams()
    if instruction := os.environ.get(_COMPLETION):
        return _complete(instruction, output)
    return _run(typed, output)
