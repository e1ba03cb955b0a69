"""``gpusnap restore``: bring a snapshot back to life."""

import shlex
from collections.abc import Callable
from pathlib import Path

import click

from gpusnap.cli._failures import exit_code_of
from gpusnap.cli._format import count, duration, listed
from gpusnap.cli._interrupts import Interrupts
from gpusnap.cli._options import (
    backend_option,
    device_map_option,
    devices_option,
    dry_run_option,
    flag,
    force_option,
    json_option,
    repo_option,
    set_option,
    snapshot_argument,
    thp_option,
    timeout_option,
)
from gpusnap.cli._output import Output
from gpusnap.cli._watch import Watch, watched
from gpusnap.device_map import DeviceChoice
from gpusnap.errors import IncompatibleError
from gpusnap.handover import wait_for
from gpusnap.jobs.process import become_subreaper
from gpusnap.restore import (
    RestoredTarget,
    RestoreOptions,
    RestorePlan,
    plan_restore,
    run_restore,
)


@click.command()
@snapshot_argument
@repo_option
@backend_option
@device_map_option
@devices_option
@timeout_option
@flag("--verify-memory", "verify_memory", "Read filled memory back and compare it.")
@thp_option
@set_option
@flag(
    "--new-pids",
    "new_pids",
    "Restore into a PID namespace of its own, beside others of the same snapshot.",
)
@flag(
    "--wait",
    "wait",
    "Stay until the restored root ends: pass signals on to it and exit with its code.",
)
@force_option
@dry_run_option
@json_option
def restore(
    snapshot: str,
    repo: Path | None,
    backend: str | None,
    device_map: tuple[tuple[str, str], ...],
    devices: tuple[str, ...],
    timeout_us: int,
    verify_memory: bool,
    thp: bool,
    overrides: dict[str, str],
    new_pids: bool,
    wait: bool,
    force: tuple[str, ...],
    dry_run: bool,
    output: Output,
) -> int:
    """Bring a saved process tree back to life.

    It gets its PIDs back, on the devices it was saved on or their like. With --new-pids it
    gets them back only as it sees itself: others see new ones, and one snapshot can run several
    times at once.

    SNAPSHOT is a path with a slash, a name in the repository, the beginning of one, or
    latest.
    """
    options = RestoreOptions(
        backend=backend,
        timeout_us=timeout_us,
        verify_memory=verify_memory,
        thp=thp,
        new_pids=new_pids,
        devices=DeviceChoice(pairs=device_map, devices=devices),
        overrides=overrides,
        force=frozenset(force),
    )
    if dry_run:
        return _show(plan_restore(snapshot, repository=repo, options=options), output)
    if wait:
        become_subreaper()
    with watched(output) as watch:
        target = run_restore(snapshot, repository=repo, options=options, plugins=watch.plugins)
    _report(target, watch, output, output.note if wait else output.say)
    return wait_for(target, _late_signal) if wait else watch.exit_code


def _late_signal() -> int | None:
    """A signal that came when the restored tree could no longer be stopped by it."""
    interrupts = click.get_current_context().find_object(Interrupts)
    return None if interrupts is None else interrupts.late


def devices_of(plan: RestorePlan) -> str:
    """Say what replaces the devices of the snapshot."""
    if plan.backend is None:
        return "none are needed"
    if plan.device_map is None:
        return "do not fit"
    if plan.device_map.identity:
        return "the same"
    return listed(f"{old} -> {new}" for old, new in plan.device_map.pairs)


def _show(plan: RestorePlan, output: Output) -> int:
    if output.json:
        output.document(plan)
    else:
        output.facts(
            [
                ("snapshot", plan.snapshot),
                ("processes", listed(plan.pids)),
                ("backend", plan.backend or "none is needed"),
                ("engine", plan.engine.value),
                ("devices", devices_of(plan)),
                ("criu", shlex.join(plan.criu_command)),
            ]
        )
        output.findings(plan.findings)
    return exit_code_of(plan.findings, IncompatibleError)


def _report(
    target: RestoredTarget, watch: Watch, output: Output, say: Callable[[str], None]
) -> None:
    if output.json:
        watch.summary("restore", target)
        return
    others = len(target.processes) - 1
    tree = f" and {count(others, 'process', 'processes')} below it" if others else ""
    say(
        f"Restored process {target.root_pid}{tree} from {target.snapshot} "
        f"in {duration(watch.took_us)}; it runs"
    )
    if target.init_pid is not None:
        say(
            f"It sees the PIDs of the snapshot; its root, {target.new_pids[0][0]} inside, is "
            f"{target.root_pid} here. kill -9 {target.init_pid} ends all of it"
        )
