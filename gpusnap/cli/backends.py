"""``gpusnap backends``: which backends are installed, and whether they can work here."""

import click

from gpusnap.cli._format import listed, yes_no
from gpusnap.cli._messages import BackendList, BackendRow, BrokenRow
from gpusnap.cli._options import backend_option, json_option
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK
from gpusnap.plugins import Plugins, default_plugins

_COLUMNS = ("NAME", "VENDOR", "USABLE", "DRIVER", "CAPABILITIES")


@click.command()
@backend_option
@json_option
def backends(backend: str | None, output: Output) -> int:
    """List the backends and whether each can work here."""
    plugins = default_plugins()
    found = BackendList(
        backends=read_backends(plugins, backend),
        broken=tuple(BrokenRow(name=each.name, reason=each.reason) for each in plugins.broken),
    )
    if output.json:
        output.document(found)
    else:
        _show(found, output)
    return EXIT_OK


def read_backends(plugins: Plugins, name: str | None = None) -> tuple[BackendRow, ...]:
    """Ask every backend, or the one named, about itself and this machine.

    Raises:
        NoBackendError: There is none of that name.
    """
    chosen = plugins.backends() if name is None else (plugins.backend(name),)
    return tuple(BackendRow(info=each.info, probe=each.probe()) for each in chosen)


def _row(row: BackendRow) -> tuple[str, ...]:
    return (
        row.info.name,
        row.info.vendor,
        yes_no(row.probe.usable),
        row.probe.driver_version or "-",
        listed(sorted(row.info.capabilities)),
    )


def _show(found: BackendList, output: Output) -> None:
    if found.backends:
        output.table(_COLUMNS, map(_row, found.backends))
    for row in found.backends:
        for remark in (*row.probe.reasons, *filter(None, [row.info.note])):
            output.say(f"{row.info.name}: {remark}")
    for broken in found.broken:
        output.say(f"{broken.name} is broken: {broken.reason}")
