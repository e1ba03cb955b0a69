"""A simulated accelerator, for trying and testing without a GPU; usable by third parties.

A *simulated machine* is a folder. ``create_machine`` makes one, the environment variable
``GPUSNAP_SIM_DIR`` names it to programs and to the backend:

- :mod:`gpusnap.testing.device` is what a target program uses: device memory and kernels;
- :mod:`gpusnap.testing.backend` is the backend plugin, registered as ``simulated``;
- :mod:`gpusnap.testing.program` is a ready-made target program with a checkable result;
- :mod:`gpusnap.testing.conformance` is the test suite for the backends of third parties; it
  alone needs pytest.
"""

from gpusnap.testing.failures import DriverCall, FailureKind, fail
from gpusnap.testing.machine import (
    SIM_VARIABLE,
    DeviceDescription,
    Machine,
    create_machine,
    current_machine,
)

__all__ = [
    "SIM_VARIABLE",
    "DeviceDescription",
    "DriverCall",
    "FailureKind",
    "Machine",
    "create_machine",
    "current_machine",
    "fail",
]
