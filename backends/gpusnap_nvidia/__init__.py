"""NVIDIA devices for gpusnap, through CUDA's checkpoint API and NVML.

Importing this package opens no driver: that happens in a worker process, on the first call.
"""

from gpusnap_nvidia.backend import NvidiaBackend

__all__ = ["NvidiaBackend", "backend"]

backend = NvidiaBackend()
"""What the entry point ``gpusnap.backends`` names."""
