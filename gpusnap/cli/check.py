"""``gpusnap check``: whether this machine, or a process, can be checkpointed."""

import click

from gpusnap.checks import preflight
from gpusnap.cli._failures import exit_code_of
from gpusnap.cli._messages import BackendRow, CheckReport
from gpusnap.cli._options import backend_option, json_option, optional_pid_argument
from gpusnap.cli._output import Output
from gpusnap.cli.backends import read_backends
from gpusnap.plugins import default_plugins
from gpusnap.types import Finding

_COLUMNS = ("SEVERITY", "FINDING", "CODE", "CURE")


@click.command()
@optional_pid_argument
@backend_option
@json_option
def check(pid: int | None, backend: str | None, output: Output) -> int:
    """Check this machine, or with PID a process tree.

    Nothing is changed. The exit code is the one a checkpoint would be refused with, 3 for
    warnings, 0 where nothing stands in the way.
    """
    plugins = default_plugins()
    if backend is not None:
        plugins.backend(backend)
    report = CheckReport(
        pid=pid,
        findings=preflight(pid, backend=backend, plugins=plugins),
        backends=read_backends(plugins, backend),
    )
    if output.json:
        output.document(report)
    else:
        _show(report, output)
    return exit_code_of(report.findings)


def _row(finding: Finding) -> tuple[str, ...]:
    return (finding.severity.value, finding.text, finding.code, finding.cure or "-")


def _show(report: CheckReport, output: Output) -> None:
    if report.findings:
        output.table(_COLUMNS, map(_row, report.findings), fold=True)
    for row in report.backends:
        output.say(_sentence(row))
    if not any(row.probe.usable for row in report.backends):
        output.say("No backend is usable: only processes without device state can be saved")


def _sentence(row: BackendRow) -> str:
    driver = f", driver {row.probe.driver_version}" if row.probe.driver_version else ""
    if row.probe.usable:
        return f"Backend {row.info.name} is usable{driver}"
    return f"Backend {row.info.name} is not usable{driver}: {'; '.join(row.probe.reasons)}"
