"""``gpusnap check``: whether this machine, or a process, can be checkpointed."""

from collections.abc import Iterator
from pathlib import Path

import click

from gpusnap.checks import preflight
from gpusnap.cli._failures import exit_code_of
from gpusnap.cli._messages import BackendRow, CheckReport
from gpusnap.cli._options import (
    backend_option,
    device_map_option,
    devices_option,
    flag,
    json_option,
    optional_pid_argument,
    repo_option,
    restorable_option,
)
from gpusnap.cli._output import Output
from gpusnap.cli.backends import read_backends
from gpusnap.cli.restore import devices_of
from gpusnap.device_map import DeviceChoice
from gpusnap.errors import IncompatibleError, TargetError, UsageError
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.restore import RestoreOptions, plan_restore
from gpusnap.types import Finding

_COLUMNS = ("SEVERITY", "FINDING", "CODE", "CURE")


@click.command()
@optional_pid_argument
@restorable_option
@repo_option
@backend_option
@device_map_option
@devices_option
@flag(
    "--rocgdb",
    "rocgdb",
    "Have AMD's debugger count queues and waves, which stops the process for seconds; not yet run "
    "on AMD hardware.",
)
@json_option
def check(
    pid: int | None,
    restore: str | None,
    repo: Path | None,
    backend: str | None,
    device_map: tuple[tuple[str, str], ...],
    devices: tuple[str, ...],
    rocgdb: bool,
    output: Output,
) -> int:
    """Check this machine, a process tree or a snapshot.

    That is a tree with PID, a snapshot with --restore. Nothing is changed. The exit code is
    the one a checkpoint, or the restore, would be refused with, 3 for warnings, 0 where nothing
    stands in the way.
    """
    plugins = default_plugins()
    if backend is not None:
        plugins.backend(backend)
    choice = DeviceChoice(pairs=device_map, devices=devices)
    if choice and restore is None:
        raise UsageError("Devices are chosen for a restore", cure="Name a snapshot with --restore")
    if rocgdb and pid is None:
        raise UsageError("rocgdb looks into a process", cure="Name one by its PID")
    if restore is None:
        report = CheckReport(
            pid=pid,
            findings=preflight(pid, backend=backend, debugger=rocgdb, plugins=plugins),
            backends=read_backends(plugins, backend),
        )
    elif pid is None:
        options = RestoreOptions(backend=backend, devices=choice)
        report = _report_restore(restore, repo, options, plugins)
    else:
        raise UsageError("A process and a snapshot are two checks", cure="Name one of them")
    if output.json:
        output.document(report)
    else:
        _show(report, output)
    return exit_code_of(report.findings, IncompatibleError if restore else TargetError)


def _report_restore(
    snapshot: str, repo: Path | None, options: RestoreOptions, plugins: Plugins
) -> CheckReport:
    plan = plan_restore(snapshot, repository=repo, options=options, plugins=plugins)
    return CheckReport(
        pid=None,
        findings=plan.findings,
        backends=read_backends(plugins, options.backend),
        restore=plan,
    )


def _row(finding: Finding) -> tuple[str, ...]:
    return (finding.severity.value, finding.text, finding.code, finding.cure or "-")


def _show(report: CheckReport, output: Output) -> None:
    if report.findings:
        output.table(_COLUMNS, map(_row, report.findings), fold=True)
    if report.restore is not None:
        output.say(f"Devices for {report.restore.snapshot}: {devices_of(report.restore)}")
        return
    for row in report.backends:
        for sentence in _sentences(row):
            output.say(sentence)
    if not any(row.probe.usable for row in report.backends):
        output.say("No backend is usable: only processes without device state can be saved")


def _sentences(row: BackendRow) -> Iterator[str]:
    name = row.info.name
    driver = f", driver {row.probe.driver_version}" if row.probe.driver_version else ""
    if not row.probe.usable:
        yield f"Backend {name} is not usable{driver}: {'; '.join(row.probe.reasons)}"
        return
    yield f"Backend {name} is usable{driver}"
    for remark in (*row.probe.reasons, *filter(None, [row.info.note])):
        yield f"{name}: {remark}"
