"""What matters of PyTorch in a program that may use it; PyTorch is never imported here."""

import sys
from typing import Any


def _cuda() -> Any:  # noqa: ANN401 - PyTorch is not there to be checked against
    """PyTorch's part for CUDA, where the program has loaded and used it."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    return cuda


def is_capturing() -> bool:
    """Whether the current stream captures a CUDA graph."""
    cuda = _cuda()
    return cuda is not None and bool(cuda.is_current_stream_capturing())


def wait_for_devices() -> None:
    """Wait until the devices have done all work that they were given.

    Those on which the program has no memory are left alone: waiting would begin to use them.
    """
    cuda = _cuda()
    if cuda is None:
        return
    for index in range(cuda.device_count()):
        if index == cuda.current_device() or cuda.memory_reserved(index):
            cuda.synchronize(index)
