"""``gpusnap setup-criu``: make a private copy of CRIU."""

import click

from gpusnap.cli._options import json_option
from gpusnap.cli._output import Output
from gpusnap.criu import install_private_criu
from gpusnap.errors import EXIT_OK


@click.command("setup-criu")
@json_option
def setup_criu(output: Output) -> int:
    """Make a private copy of CRIU.

    It lies in the user's data folder. Its packages come through this machine's own apt
    configuration, signatures checked; nothing on the system changes.
    """
    criu = install_private_criu(output.note)
    if output.json:
        output.document(criu)
    else:
        output.say(f"CRIU {criu.version_text} is in {criu.path}")
    return EXIT_OK
