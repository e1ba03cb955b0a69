"""``gpusnap resume``: put a suspended process back on its devices."""

import click

from gpusnap.cli._format import duration
from gpusnap.cli._options import (
    backend_option,
    device_map_option,
    devices_option,
    json_option,
    pid_argument,
)
from gpusnap.cli._output import Output
from gpusnap.cli._watch import watched
from gpusnap.suspension import resume as resume_target


@click.command()
@pid_argument
@backend_option
@device_map_option
@devices_option
@json_option
def resume(
    pid: int,
    backend: str | None,
    device_map: tuple[tuple[str, str], ...],
    devices: tuple[str, ...],
    output: Output,
) -> int:
    """Put a suspended tree back on its devices, or on others."""
    with watched(output) as watch:
        resumed = resume_target(
            pid, backend=backend, device_map=device_map, devices=devices, plugins=watch.plugins
        )
    if output.json:
        watch.summary("resume", resumed)
    else:
        output.say(f"Resumed process {pid} in {duration(watch.took_us)}; it computes again")
    return watch.exit_code
