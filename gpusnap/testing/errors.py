"""What the simulated device and its driver refuse.

::

    GpusnapError
    └── SimulatedDeviceError
        ├── OutOfMemoryError      no room on the device, or in host memory for a checkpoint
        ├── DeviceLostError       the memory of this process is no longer on the device
        ├── IllegalStateError     the call does not fit the state of the process (CUDA's 401)
        ├── NotReadyError         work was still under way after the timeout (CUDA's 600)
        ├── UnsupportedError      a resource that cannot be checkpointed (CUDA's 801)
        └── UnknownProcessError   the process ended, or never opened a device

The first two also reach target programs; the others answer driver calls.
"""

from gpusnap.errors import GpusnapError


class SimulatedDeviceError(GpusnapError):
    """The simulated device or its driver refused something."""


class OutOfMemoryError(SimulatedDeviceError):
    """Not enough memory on the device, or in host memory during a checkpoint."""


class DeviceLostError(SimulatedDeviceError):
    """The process came back without its device state, or the machine was wiped."""


class IllegalStateError(SimulatedDeviceError):
    """A driver call that does not fit the state of the process."""


class NotReadyError(SimulatedDeviceError):
    """Work was under way, or the process took no driver call, for longer than was allowed."""


class UnsupportedError(SimulatedDeviceError):
    """The process holds a resource that the driver cannot checkpoint or restore."""


class UnknownProcessError(SimulatedDeviceError):
    """The driver knows no living process of that PID."""


REFUSALS: dict[str, type[SimulatedDeviceError]] = {
    error.__name__: error
    for error in (
        SimulatedDeviceError,
        OutOfMemoryError,
        DeviceLostError,
        IllegalStateError,
        NotReadyError,
        UnsupportedError,
        UnknownProcessError,
    )
}
"""Every class by its name, under which an answer carries it from one process to another."""
