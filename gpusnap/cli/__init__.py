"""The command line: one module a verb; all of them print through ``_output`` alone."""

from gpusnap.cli._main import main, run

__all__ = ["main", "run"]
