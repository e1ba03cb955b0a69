"""Arguments and options that several verbs share; each option has its environment variable."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from gpusnap.cli import _parameters
from gpusnap.cli._output import Output
from gpusnap.repository import check_tags

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


def choice(name: str, parameter: str, text: str) -> Callable[[_Command], _Command]:
    """A flag that can be given, refused, or left to gpusnap."""
    bare = name.removeprefix("--")
    return click.option(
        f"{name}/--no-{bare}",
        parameter,
        default=None,
        envvar=_variable(name),
        show_envvar=True,
        help=f"{text}  [default: where the target asks for it]",
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


def _tags(
    _context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    return check_tags(value)


def tag_option(text: str, name: str = "--tag") -> Callable[[_Command], _Command]:
    """An option that takes tags, each by itself."""
    return click.option(
        name,
        metavar="TAG",
        multiple=True,
        callback=_tags,
        envvar=_variable(name),
        show_envvar=True,
        help=text,
    )


def keep(name: str, text: str) -> Callable[[_Command], _Command]:
    """An option for a number of snapshots to keep."""
    return click.option(
        f"--keep-{name}",
        metavar="N",
        type=_parameters.WholeNumber(min=0),
        default=0,
        envvar=_variable(f"--keep-{name}"),
        show_envvar=True,
        help=text,
    )


thp_option = flag(
    "--thp", "thp", "Use huge pages while memory is filled: a switch of the whole machine."
)


def workers_option(text: str) -> Callable[[_Command], _Command]:
    """The option for a number of threads."""
    return click.option(
        "--parallel-workers",
        "parallel_workers",
        metavar="N",
        type=_parameters.WholeNumber(min=1, max=1024),
        envvar=_variable("--parallel-workers"),
        show_envvar=True,
        help=f"{text}  [default: one for each CPU]",
    )


device_map_option = click.option(
    "--device-map",
    "device_map",
    metavar="OLD=NEW[,OLD=NEW]",
    callback=_parameters.device_map,
    envvar=f"{PREFIX}_DEVICE_MAP",
    show_envvar=True,
    help="Which device replaces which, by index or UUID; the others follow by themselves.",
)

devices_option = click.option(
    "--devices",
    metavar="DEVICE[,DEVICE]",
    callback=_parameters.devices,
    envvar=f"{PREFIX}_DEVICES",
    show_envvar=True,
    help="The devices that may be used, by index or UUID.  [default: all]",
)

set_option = click.option(
    "--set",
    "overrides",
    metavar="NAME=TEXT",
    multiple=True,
    callback=_parameters.overrides,
    envvar=f"{PREFIX}_OVERRIDES",
    show_envvar=True,
    help="Value for a program that saved itself: its checkpoint_self() returns it; may be given "
    "several times.",
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

snapshot_argument = click.argument("snapshot", metavar="SNAPSHOT", callback=_parameters.name)

restorable_option = click.option(
    "--restore",
    metavar="SNAPSHOT",
    callback=_parameters.name,
    envvar=f"{PREFIX}_RESTORE",
    show_envvar=True,
    help="Say whether this snapshot could be restored here, and which device replaces which.",
)
