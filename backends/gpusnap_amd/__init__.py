"""The AMD backend: lists devices and processes from sysfs, and refuses the rest by name.

Nothing here loads a ROCm library: sysfs is always there with the driver, and always enough.
"""

from gpusnap_amd.backend import AmdBackend

__all__ = ["AmdBackend", "backend"]

backend = AmdBackend()
"""The object that the entry point ``amd`` registers."""
