"""The AMD backend: lists devices and processes from sysfs, and refuses the rest by name.

No ROCm library is loaded into this process: sysfs is always there with the driver, and always
enough. What a library can add to it is asked in a worker process.
"""

from gpusnap_amd.backend import AmdBackend

__all__ = ["AmdBackend", "backend"]

backend = AmdBackend()
"""The object that the entry point ``amd`` registers."""
