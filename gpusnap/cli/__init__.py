"""The command line: one module a verb; all of them print through ``_output`` alone."""

import signal
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run what was typed, and exit."""
    # While modules load there is nothing to roll back: Ctrl-C ends gpusnap without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpusnap.cli._main import run  # noqa: PLC0415 - it takes a while, see above
    from gpusnap.datapath import heap  # noqa: PLC0415

    heap.keep_freed_memory()
    heap.collect_seldom()
    sys.exit(run(sys.argv[1:]))
