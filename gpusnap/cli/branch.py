"""``gpusnap branch``: several continuations of one snapshot side by side."""

from pathlib import Path

import click

from gpusnap.cli import _parameters
from gpusnap.cli._format import count, duration, listed
from gpusnap.cli._interrupts import Interrupts
from gpusnap.cli._messages import Line
from gpusnap.cli._options import (
    backend_option,
    devices_option,
    force_option,
    json_option,
    repo_option,
    snapshot_argument,
    timeout_option,
)
from gpusnap.cli._output import Output
from gpusnap.cli._watch import watched
from gpusnap.errors import EXIT_OK, GpusnapError
from gpusnap.jobs.branching import BRANCH, Branch
from gpusnap.jobs.branching import branch as branch_snapshot


class BranchLine(Line, frozen=True, kw_only=True, tag="branch"):
    """A branch has ended, or could not be restored."""

    branch: Branch


@click.command()
@snapshot_argument
@click.option(
    "--grid",
    metavar="NAME=TEXT[,TEXT]",
    multiple=True,
    required=True,
    callback=_parameters.grid,
    envvar="GPUSNAP_GRID",
    show_envvar=True,
    help="Values for the program, one for each branch; given several times, every combination "
    "is a branch.",
)
@devices_option
@click.option(
    "--per-device",
    metavar="N",
    type=_parameters.WholeNumber(min=1),
    default=1,
    envvar="GPUSNAP_PER_DEVICE",
    show_envvar=True,
    show_default=True,
    help="How many branches may run on a device at once.",
)
@click.option(
    "--private",
    metavar="FOLDER",
    multiple=True,
    callback=_parameters.folders,
    envvar="GPUSNAP_PRIVATE",
    show_envvar=True,
    help="Each branch writes into a version of its own of this folder, FOLDER.branch-N; may be "
    "given several times.",
)
@repo_option
@backend_option
@timeout_option
@force_option
@json_option
def branch(
    snapshot: str,
    grid: dict[str, tuple[str, ...]],
    devices: tuple[str, ...],
    per_device: int,
    private: tuple[Path, ...],
    repo: Path | None,
    backend: str | None,
    timeout_us: int,
    force: tuple[str, ...],
    output: Output,
) -> int:
    """Continue a snapshot several times, with other values.

    The program must have saved itself with checkpoint_self(), which returns the values, and the
    number of the branch as branch. Each branch has a device for itself; those for which there is
    none yet wait. The exit code is 0 if all branches ended with 0.

    SNAPSHOT is a path with a slash, a name in the repository, the beginning of one, or
    latest.
    """
    with watched(output) as watch:
        branched = branch_snapshot(
            snapshot,
            grid,
            devices=devices,
            per_device=per_device,
            private=private,
            repository=repo,
            backend=backend,
            timeout_us=timeout_us,
            force=frozenset(force),
            plugins=watch.plugins,
            started=lambda branch: _started(branch, output),
            report=lambda branch: _tell(branch, output),
        )
    if output.json:
        watch.summary("branch", branched)
    else:
        output.say(f"{count(len(branched.branches), 'branch', 'branches')} ended")
    return EXIT_OK if branched.succeeded else GpusnapError.exit_code


def _started(branch: Branch, output: Output) -> None:
    # From here on to the next restore a signal has nothing to wait for
    interrupts = click.get_current_context().find_object(Interrupts)
    if interrupts is not None:
        interrupts.operation_ended(last=False)
    output.note(f"{_name(branch)}: runs as process {branch.root_pid}")


def _name(branch: Branch) -> str:
    values = [f"{name}={text}" for name, text in branch.overrides.items() if name != BRANCH]
    place = f" on device {listed(branch.devices)}" if branch.devices else ""
    return f"branch {branch.number} ({listed(values)}){place}"


def _tell(branch: Branch, output: Output) -> None:
    if output.json:
        output.line(BranchLine(branch=branch))
        return
    took = duration(branch.microseconds)
    if branch.failure is not None:
        output.say(f"{_name(branch)}: not restored: {branch.failure}")
    else:
        code = "unknown" if branch.exit_code is None else branch.exit_code
        output.say(f"{_name(branch)}: exit code {code} after {took}")
