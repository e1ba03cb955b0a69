"""What ``run`` and ``watch`` share: their options, and how a job's reports are printed."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from gpusnap.cli import _parameters
from gpusnap.cli._messages import Line
from gpusnap.cli._options import (
    PREFIX,
    backend_option,
    choice,
    duration,
    flag,
    force_option,
    json_option,
    keep,
    lock_timeout_option,
    repo_option,
    tag_option,
    thp_option,
    timeout_option,
    workers_option,
)
from gpusnap.cli._output import Output
from gpusnap.datapath import Compression
from gpusnap.jobs.opening import Request
from gpusnap.jobs.record import EX_TEMPFAIL, RunOptions
from gpusnap.jobs.reports import Report, Tell
from gpusnap.jobs.supervisor import supervise
from gpusnap.repository import Age

_Command = TypeVar("_Command", bound=Callable[..., Any] | click.Command)
_Decorator = Callable[[Any], Any]

_SIGNALS = ("TERM", "USR1", "USR2")
_HOTTEST = 200


class ReportLine(Line, frozen=True, kw_only=True, tag="report"):
    """Something that happened to a run; on standard error, for the job has standard output."""

    report: Report


def _number(name: str, metavar: str, text: str, kind: _parameters.WholeNumber) -> _Decorator:
    return click.option(
        f"--{name}",
        metavar=metavar,
        type=kind,
        envvar=f"{PREFIX}_{name.replace('-', '_').upper()}",
        show_envvar=True,
        help=text,
    )


def _interval(name: str, text: str) -> _Decorator:
    return click.option(
        f"--{name}",
        f"{name.replace('-', '_')}_us",
        metavar="DURATION",
        callback=_optional_duration,
        envvar=f"{PREFIX}_{name.replace('-', '_').upper()}",
        show_envvar=True,
        help=text,
    )


def _optional_duration(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> int | None:
    return None if value is None else _parameters.parse_duration(value)


def _age(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else str(Age.parse(value))


name_option = click.option(
    "--name",
    metavar="NAME",
    envvar=f"{PREFIX}_NAME",
    show_envvar=True,
    help="Name of the run, by which it goes on later.  [default: made of program and time]",
)

_EVERY = _interval("every", "Save the job at this interval, such as 30m.")

_ON_ECC = _number(
    "on-ecc",
    "N",
    "Take N new uncorrected memory errors, bad pages or remapped rows of a device, or a row that "
    "waits to be remapped, for a fault, and save the job.",
    _parameters.WholeNumber(min=1),
)

_OPTIONS: tuple[_Decorator, ...] = (
    _EVERY,
    _ON_ECC,
    _number(
        "on-temperature",
        "CELSIUS",
        "Take a device that is so hot for faulty, and save the job.",
        _parameters.WholeNumber(1, _HOTTEST),
    ),
    flag(
        "--move-on-fault",
        "move_on_fault",
        "Bring the job back on a healthy device where its own has a fault; implies --on-ecc 1.",
    ),
    click.option(
        "--on-signal",
        type=click.Choice(_SIGNALS),
        envvar=f"{PREFIX}_ON_SIGNAL",
        show_envvar=True,
        help="Save the job at this signal, end it, and exit with --resume-code.",
    ),
    duration("--grace", "grace_us", "30s", "How long that may take; then the job gets the signal."),
    click.option(
        "--resume-code",
        "resume_code",
        metavar="CODE",
        type=_parameters.WholeNumber(0, 255),
        default=EX_TEMPFAIL,
        envvar=f"{PREFIX}_RESUME_CODE",
        show_envvar=True,
        show_default=True,
        help="Exit code for a run that was saved at a signal and can go on.",
    ),
    click.option(
        "--restart",
        metavar="N",
        type=_parameters.WholeNumber(min=0),
        default=0,
        envvar=f"{PREFIX}_RESTART",
        show_envvar=True,
        show_default=True,
        help="Bring a job that crashed back up to N times in a row, from its newest snapshot that "
        "is intact, else from its beginning; a new snapshot starts the count anew.",
    ),
    duration(
        "--restart-delay",
        "restart_delay_us",
        "1s",
        "How long to wait before that; each further time in a row twice as long.",
    ),
    _interval("bound-loss", "Warn where more work than this could be lost."),
    keep("last", "Keep the N newest snapshots of the run.  [default: 3 where no rule is given]"),
    keep("hourly", "Keep the newest of each of the last N hours that have one."),
    keep("daily", "Keep the newest of each of the last N days that have one."),
    keep("weekly", "Keep the newest of each of the last N weeks that have one."),
    keep("monthly", "Keep the newest of each of the last N months that have one."),
    click.option(
        "--keep-within",
        metavar="AGE",
        callback=_age,
        envvar=f"{PREFIX}_KEEP_WITHIN",
        show_envvar=True,
        help="Keep all that are so much older than the newest at most, such as 2h or 3d12h.",
    ),
    tag_option("Keep all with this tag; may be given several times.", "--keep-tag"),
    repo_option,
    click.option(
        "--incremental/--no-incremental",
        "incremental",
        default=None,
        envvar=f"{PREFIX}_INCREMENTAL",
        show_envvar=True,
        help="Store only what earlier snapshots of the run do not have.  [default: where it can "
        "be done]",
    ),
    click.option(
        "--compress",
        type=click.Choice([each.value for each in Compression]),
        default=Compression.AUTO.value,
        envvar=f"{PREFIX}_COMPRESS",
        show_envvar=True,
        show_default=True,
        help="How memory is compressed; auto tries a sample and takes what pays.",
    ),
    workers_option("Threads that save memory."),
    click.option(
        "--memory-budget",
        "memory_budget",
        metavar="SIZE",
        callback=_parameters.size,
        envvar=f"{PREFIX}_MEMORY_BUDGET",
        show_envvar=True,
        help="Host memory for what is copied and not yet written.  [default: a share of what is "
        "free]",
    ),
    tag_option("Word to list and to keep the snapshots by; may be given several times."),
    backend_option,
    timeout_option,
    lock_timeout_option,
    flag("--tcp-established", "tcp_established", "Save established TCP connections."),
    choice("--file-locks", "file_locks", "Save file locks."),
    choice("--ext-unix-sk", "ext_unix_sk", "Save Unix datagram sockets connected to outside."),
    choice("--link-remap", "link_remap", "Save files in use that have another name alone."),
    thp_option,
    force_option,
    json_option,
)


def job_options(command: _Command) -> _Command:
    """Add the options of a supervised job, in their order."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


steps_option = _number(
    "every-steps",
    "N",
    "Have the job save itself at every N-th call of gpusnap.step().",
    _parameters.WholeNumber(min=1),
)

fresh_option = flag("--fresh", "fresh", "Begin a run anew that has a name already.")


def supervise_job(
    output: Output,
    parameters: Mapping[str, object],
    *,
    name: str | None,
    repo: Path | None,
    command: tuple[str, ...] = (),
    pid: int | None = None,
    fresh: bool = False,
) -> int:
    """Supervise a job as the options say, and return what gpusnap exits with."""
    request = Request(
        name=name,
        command=command,
        pid=pid,
        repository=repo,
        options=_typed(parameters),
        fresh=fresh,
    )
    return supervise(request, _teller(output))


def _typed(parameters: Mapping[str, object]) -> dict[str, object]:
    """The options that were given, on the command line or by a variable."""
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    return {
        name: parameters[name]
        for name in msgspec.structs.asdict(RunOptions())
        if name in parameters and context.get_parameter_source(name) is not default
    }


def _teller(output: Output) -> Tell:
    lock = threading.Lock()

    def tell(report: Report) -> None:
        with lock:
            if output.json:
                output.aside(ReportLine(report=report))
                return
            output.note(f"gpusnap: {'warning: ' if report.warning else ''}{report.text}")
            if report.cure is not None:
                output.note(f"  cure: {report.cure}")
            for detail in report.details:
                output.note(f"  {detail}")

    return tell
