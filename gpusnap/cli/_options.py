"""Arguments and options that several verbs share; each option has its environment variable."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from gpusnap.cli import _parameters
from gpusnap.cli._output import Output

_Command = TypeVar("_Command", bound=Callable[..., Any] | click.Command)

PREFIX = "GPUSNAP"
_JSON_VARIABLE = f"{PREFIX}_JSON"


def _variable(name: str) -> str:
    return f"{PREFIX}_{name.removeprefix('--').replace('-', '_').upper()}"


def _output(_context: click.Context, _parameter: click.Parameter, value: bool) -> Output:
    return Output(json=value)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether errors are to be JSON, also those met before the arguments are understood."""
    options = [*arguments, "--"]
    if "--json" in options[: options.index("--")]:
        return True
    return os.environ.get(_JSON_VARIABLE, "").lower() in {"1", "true", "t", "yes", "y", "on"}


def flag(name: str, parameter: str, text: str) -> Callable[[_Command], _Command]:
    """A flag that is off by default."""
    return click.option(
        name, parameter, is_flag=True, envvar=_variable(name), show_envvar=True, help=text
    )


def duration(name: str, parameter: str, default: str, text: str) -> Callable[[_Command], _Command]:
    """An option that takes a duration and hands it on in microseconds."""
    return click.option(
        name,
        parameter,
        metavar="DURATION",
        default=default,
        callback=_parameters.duration,
        envvar=_variable(name),
        show_envvar=True,
        show_default=True,
        help=text,
    )


json_option = click.option(
    "--json",
    "output",
    is_flag=True,
    callback=_output,
    envvar=_JSON_VARIABLE,
    show_envvar=True,
    help="Answer in JSON.",
)

repo_option = click.option(
    "-r",
    "--repo",
    metavar="FOLDER",
    callback=_parameters.folder,
    envvar=f"{PREFIX}_REPO",
    show_envvar=True,
    help="Repository that holds the snapshots.  [default: the user's data folder]",
)

backend_option = click.option(
    "--backend",
    metavar="NAME",
    envvar=f"{PREFIX}_BACKEND",
    show_envvar=True,
    help="Backend to use; without it every usable one is asked.",
)

force_option = click.option(
    "--force",
    metavar="CODE",
    multiple=True,
    envvar=f"{PREFIX}_FORCE",
    show_envvar=True,
    help="Go on in spite of the finding with this code; may be given several times.",
)

dry_run_option = flag("--dry-run", "dry_run", "Show what would be done and change nothing.")

timeout_option = duration("--timeout", "timeout_us", "30m", "How long CRIU may take.")

lock_timeout_option = duration(
    "--lock-timeout",
    "lock_timeout_us",
    "10s",
    "How long device work under way is waited for.",
)

pid_argument = click.argument("pid", metavar="PID", callback=_parameters.pid)

optional_pid_argument = click.argument(
    "pid", metavar="[PID]", required=False, callback=_parameters.pid
)

snapshot_argument = click.argument("snapshot", metavar="SNAPSHOT")
