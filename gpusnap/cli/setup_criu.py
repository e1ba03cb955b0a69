"""``gpusnap setup-criu``: make a private copy of CRIU."""

import click

from gpusnap.cli._options import json_option
from gpusnap.cli._output import Output
from gpusnap.criu import SUITE, install_private_criu
from gpusnap.errors import EXIT_OK


@click.command("setup-criu")
@click.option(
    "--suite",
    metavar="SUITE",
    default=SUITE,
    show_default=True,
    envvar="GPUSNAP_SUITE",
    show_envvar=True,
    help="Debian release to take it from; a later one has a later CRIU.",
)
@json_option
def setup_criu(suite: str, output: Output) -> int:
    """Make a private copy of CRIU.

    It lies in the user's data folder. Its packages come through this machine's own apt
    configuration, signatures checked; nothing on the system changes.
    """
    criu = install_private_criu(output.note, suite=suite)
    if output.json:
        output.document(criu)
    else:
        output.say(f"CRIU {criu.version_text} is in {criu.path}")
    return EXIT_OK
