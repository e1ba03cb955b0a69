"""The plugin that counts: it adds each operation's figures to the file of them all."""

import importlib.util

from gpusnap.errors import GpusnapError
from gpusnap.metrics.figures import figures_of
from gpusnap.metrics.outlet import Batch, Outlet
from gpusnap.metrics.textfile import PORT, TEXTFILE, add, textfile


class Metrics(Outlet):
    """Counts operations, where a textfile or a port is wanted."""

    variables = (TEXTFILE, PORT)

    def tell(self, batch: Batch) -> None:
        """Add what happened to the figures."""
        later = figures_of(batch)
        if later:
            require_client()
            path = textfile()
            self.bounded(lambda: add(path, later), f"The metrics file {path}")


def require_client() -> None:
    """Refuse to go on without prometheus-client.

    Raises:
        GpusnapError: It is not installed.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        msg = "Metrics need the Python package prometheus-client, which is not installed"
        raise GpusnapError(msg, cure="Run pip install 'gpusnap[metrics]'")


metrics = Metrics()
