"""``gpusnap replay``: restore a snapshot again and again."""

from pathlib import Path

import click

from gpusnap.cli import _parameters
from gpusnap.cli._format import count, duration, listed
from gpusnap.cli._interrupts import Interrupts
from gpusnap.cli._messages import Line
from gpusnap.cli._options import (
    backend_option,
    device_map_option,
    devices_option,
    force_option,
    json_option,
    repo_option,
    set_option,
    snapshot_argument,
    timeout_option,
)
from gpusnap.cli._output import Output
from gpusnap.cli._watch import Watch, watched
from gpusnap.errors import EXIT_OK, GpusnapError
from gpusnap.jobs.replaying import DEFAULT_TIMES, Replayed, ReplayedRun
from gpusnap.jobs.replaying import replay as replay_snapshot
from gpusnap.restore import RestoredTarget

_STDERR = 2


class RunLine(Line, frozen=True, kw_only=True, tag="run"):
    """One run of a replay has ended."""

    run: ReplayedRun


@click.command()
@snapshot_argument
@click.option(
    "--times",
    metavar="N",
    type=_parameters.WholeNumber(min=1),
    default=DEFAULT_TIMES,
    envvar="GPUSNAP_TIMES",
    show_envvar=True,
    show_default=True,
    help="How often at most.",
)
@click.option(
    "--until",
    metavar="COMMAND",
    envvar="GPUSNAP_UNTIL",
    show_envvar=True,
    help="Shell command that is run after each run; stop when it exits with 0.",
)
@click.option(
    "--output",
    "outputs",
    metavar="FILE",
    multiple=True,
    envvar="GPUSNAP_OUTPUTS",
    show_envvar=True,
    help="File to compare; may be given several times.  [default: those that the snapshot has "
    "open for writing]",
)
@click.option(
    "--run-timeout",
    "run_timeout_us",
    metavar="DURATION",
    callback=_parameters.optional_duration,
    envvar="GPUSNAP_RUN_TIMEOUT",
    show_envvar=True,
    help="Kill a run that takes longer.  [default: never]",
)
@set_option
@repo_option
@backend_option
@device_map_option
@devices_option
@timeout_option
@force_option
@json_option
def replay(
    snapshot: str,
    times: int,
    until: str | None,
    outputs: tuple[str, ...],
    run_timeout_us: int | None,
    overrides: dict[str, str],
    repo: Path | None,
    backend: str | None,
    device_map: tuple[tuple[str, str], ...],
    devices: tuple[str, ...],
    timeout_us: int,
    force: tuple[str, ...],
    output: Output,
) -> int:
    """Restore a snapshot again and again, and compare the runs.

    Each time the job runs to its end. Its exit code and outputs are compared; the files are put
    back before each run, and those of the last run are left. With --until the exit code is 0 if
    that command came to exit with 0; without it, if all runs were identical.

    SNAPSHOT is a path with a slash, a name in the repository, the beginning of one, or
    latest.
    """
    with watched(output) as watch:
        replayed = replay_snapshot(
            snapshot,
            times=times,
            until=until,
            outputs=outputs or None,
            run_timeout_us=run_timeout_us,
            overrides=overrides,
            repository=repo,
            backend=backend,
            device_map=device_map,
            devices=devices,
            timeout_us=timeout_us,
            force=frozenset(force),
            stdout=_STDERR if output.json else None,
            plugins=watch.plugins,
            started=_started,
            report=lambda run: _tell(run, output),
        )
    _show(replayed, until, watch, output)
    good = replayed.stopped if until is not None else replayed.identical
    return EXIT_OK if good else GpusnapError.exit_code


def _started(_number: int, _target: RestoredTarget) -> None:
    """From here on to the next restore a signal has nothing to wait for."""
    interrupts = click.get_current_context().find_object(Interrupts)
    if interrupts is not None:
        interrupts.operation_ended(last=False)


def _tell(run: ReplayedRun, output: Output) -> None:
    if output.json:
        output.line(RunLine(run=run))
        return
    missing = [each.path for each in run.outputs if each.sha256 is None]
    remark = f"; {listed(missing)} missing" if missing else ""
    output.say(f"run {run.number}: {outcome(run)} after {duration(run.microseconds)}{remark}")


def outcome(run: ReplayedRun) -> str:
    """Say how a run ended."""
    if run.timed_out:
        return "killed for its time"
    return "ended" if run.exit_code is None else f"exit code {run.exit_code}"


def _show(replayed: Replayed, until: str | None, watch: Watch, output: Output) -> None:
    if output.json:
        watch.summary("replay", replayed)
        return
    number = len(replayed.runs)
    if until is not None:
        when = f"in run {number}" if replayed.stopped else f"not in {count(number, 'run')}"
        output.say(f"Condition met: {when}")
    if replayed.identical:
        compared = count(len(replayed.runs[0].outputs), "output")
        output.say(f"{count(number, 'run')}: identical in exit code and {compared}")
        return
    likeliest, *others = replayed.groups
    output.say(f"Alike: runs {listed(likeliest)}" if len(likeliest) > 1 else "No two runs alike")
    for group in others if len(likeliest) > 1 else ():
        output.say(f"Different from them: {listed(group)}")
