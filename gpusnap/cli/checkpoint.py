"""``gpusnap checkpoint``: save a running process tree."""

import shlex
from pathlib import Path

import click

from gpusnap.checkpoint import run_checkpoint
from gpusnap.cli import _parameters
from gpusnap.cli._failures import exit_code_of
from gpusnap.cli._format import count, duration, listed, size
from gpusnap.cli._messages import Checkpointed, snapshot_row
from gpusnap.cli._options import (
    backend_option,
    choice,
    dry_run_option,
    flag,
    force_option,
    json_option,
    lock_timeout_option,
    pid_argument,
    repo_option,
    tag_option,
    thp_option,
    timeout_option,
    workers_option,
)
from gpusnap.cli._output import Output
from gpusnap.cli._parameters import size as size_parameter
from gpusnap.cli._watch import Watch, watched
from gpusnap.datapath import Compression
from gpusnap.errors import UsageError
from gpusnap.plan import CheckpointOptions, CheckpointPlan, choose_saving, plan_checkpoint
from gpusnap.repository import Snapshot
from gpusnap.types import Engine


@click.command()
@pid_argument
@click.argument("spec", metavar="[NAME]", required=False, callback=_parameters.name)
@click.option(
    "--name",
    metavar="NAME",
    callback=_parameters.name,
    envvar="GPUSNAP_NAME",
    show_envvar=True,
    help="Name of the snapshot, or its path with a slash; one is made up without it.",
)
@repo_option
@click.option(
    "--kill/--leave-running",
    " /-R",
    "kill",
    default=False,
    envvar="GPUSNAP_KILL",
    show_envvar=True,
    help="End the target once its snapshot is complete; by default it runs on.",
)
@backend_option
@click.option(
    "--engine",
    type=click.Choice([engine.value for engine in Engine]),
    envvar="GPUSNAP_ENGINE",
    show_envvar=True,
    help="Who drives the device: gpusnap itself, or CRIU's plugin of the vendor.  [default: "
    "driver where the backend offers it]",
)
@timeout_option
@lock_timeout_option
@flag("--tcp-established", "tcp_established", "Save established TCP connections.")
@choice("--file-locks", "file_locks", "Save file locks.")
@choice("--ext-unix-sk", "ext_unix_sk", "Save Unix datagram sockets connected to outside.")
@choice("--link-remap", "link_remap", "Save files in use that have another name alone.")
@flag("--no-regions", "no_regions", "Leave all memory to CRIU, which takes longer.")
@click.option(
    "--compress",
    type=click.Choice([each.value for each in Compression]),
    default=Compression.AUTO.value,
    envvar="GPUSNAP_COMPRESS",
    show_envvar=True,
    show_default=True,
    help="How memory is compressed; auto tries a sample and takes what pays.",
)
@workers_option("Threads that save memory.")
@click.option(
    "--memory-budget",
    "memory_budget",
    metavar="SIZE",
    callback=size_parameter,
    envvar="GPUSNAP_MEMORY_BUDGET",
    show_envvar=True,
    help="Host memory for what is copied and not yet written.  [default: a share of what is free]",
)
@flag("--incremental", "incremental", "Store only memory that an earlier snapshot does not have.")
@click.option(
    "--parent",
    metavar="SNAPSHOT",
    callback=_parameters.name,
    envvar="GPUSNAP_PARENT",
    show_envvar=True,
    help="Snapshot to build on: implies --incremental, which by itself takes the newest one of "
    "the same program in the repository.",
)
@click.option(
    "--first",
    metavar="START-END",
    multiple=True,
    callback=_parameters.ranges,
    envvar="GPUSNAP_FIRST",
    show_envvar=True,
    help="Memory of PID that is saved before all other, addresses as in /proc/PID/maps; may be "
    "given several times.",
)
@tag_option("Word to list and to keep the snapshot by; may be given several times.")
@thp_option
@force_option
@dry_run_option
@json_option
def checkpoint(
    pid: int,
    spec: str | None,
    name: str | None,
    repo: Path | None,
    kill: bool,
    backend: str | None,
    engine: str | None,
    timeout_us: int,
    lock_timeout_us: int,
    tcp_established: bool,
    file_locks: bool | None,
    ext_unix_sk: bool | None,
    link_remap: bool | None,
    no_regions: bool,
    compress: str,
    parallel_workers: int | None,
    memory_budget: int | None,
    incremental: bool,
    parent: str | None,
    first: tuple[tuple[int, int], ...],
    tag: tuple[str, ...],
    thp: bool,
    force: tuple[str, ...],
    dry_run: bool,
    output: Output,
) -> int:
    """Save the process tree below PID, CPU and device state.

    NAME is the snapshot's name in the repository, or with a slash the path of its folder.
    """
    options = CheckpointOptions(
        leave_running=not kill,
        backend=backend,
        engine=None if engine is None else Engine(engine),
        timeout_us=timeout_us,
        lock_timeout_us=lock_timeout_us,
        tcp_established=tcp_established,
        file_locks=file_locks,
        external_unix_sockets=ext_unix_sk,
        link_remap=link_remap,
        regions=not no_regions,
        saving=choose_saving(
            compress,
            workers=parallel_workers,
            budget=memory_budget,
            incremental=incremental or parent is not None,
        ),
        parent=parent,
        thp=thp,
        force=frozenset(force),
        tags=tag,
        first=first,
    )
    where = _one_name(spec, name)
    if dry_run:
        return _show(plan_checkpoint(pid, where, repository=repo, options=options), output)
    with watched(output) as watch:
        snapshot = run_checkpoint(
            pid, where, repository=repo, options=options, plugins=watch.plugins
        )
    _report(snapshot, watch, output)
    return watch.exit_code


def _one_name(argument: str | None, option: str | None) -> str | None:
    context = click.get_current_context()
    typed = context.get_parameter_source("name") is click.core.ParameterSource.COMMANDLINE
    if argument is not None and option is not None and typed:
        raise UsageError("The snapshot is named twice", cure="Give NAME or --name, not both")
    return option if argument is None else argument


def _show(plan: CheckpointPlan, output: Output) -> int:
    if output.json:
        output.document(plan)
    else:
        root = plan.target.root
        claimed = f" for {listed(plan.claimed)}" if plan.claimed else ""
        output.facts(
            [
                ("target", f"{root.pid} {shlex.join(root.command) or root.name}"),
                ("processes", listed(plan.target.pids)),
                ("backend", f"{plan.backend}{claimed}" if plan.backend else "none is needed"),
                ("engine", plan.engine.value),
                ("snapshot", plan.snapshot_path),
                *_parent(plan),
                ("bytes", f"about {size(plan.estimated_bytes)}"),
                ("criu", shlex.join(plan.criu_command) or "none was found"),
                *(("chosen for CRIU", f"{each.option} ({each.reason})") for each in plan.chosen),
            ]
        )
        output.findings(plan.findings)
    return exit_code_of(plan.findings)


def _parent(plan: CheckpointPlan) -> list[tuple[str, str]]:
    if not plan.incremental:
        return []
    return [("parent", plan.parent or "none: all memory is stored")]


def _report(snapshot: Snapshot, watch: Watch, output: Output) -> None:
    manifest = snapshot.manifest
    frozen_us = manifest.frozen_us if watch.record.frozen_us is None else watch.record.frozen_us
    if output.json:
        result = Checkpointed(
            snapshot=snapshot_row(snapshot),
            target_runs=manifest.left_running,
            phases=tuple(watch.record.phases),
        )
        watch.summary("checkpoint", result)
        return
    root = manifest.target.root
    state = "it runs on" if manifest.left_running else "it is gone (--kill)"
    device = "" if manifest.claimed else ", which holds no device state,"
    output.say(
        f"Saved process {root.pid} ({root.name}){device} to {snapshot.path}: "
        f"{count(len(manifest.files), 'file')}, {size(snapshot.size)}{_shared(snapshot)} "
        f"in {duration(watch.took_us)}, frozen for {duration(frozen_us)}; {state}"
    )


def _shared(snapshot: Snapshot) -> str:
    """What did not have to be stored, where identities were taken."""
    memory = snapshot.manifest.memory
    if memory is None or not memory.identities:
        return ""
    had = f"{size(memory.reused)} were in its parent" if snapshot.manifest.parent else "no parent"
    return f" ({size(snapshot.stored_size)} of them new; {had})"
