"""Programs with state that is hard to checkpoint: ``victims.py KIND LOG``.

They use the driver's library directly and write a line a step.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

_BYTES = 1 << 16


def open_driver() -> ctypes.CDLL:
    """Load the driver and make a context on its first device."""
    cuda = ctypes.CDLL(os.environ["GPUSNAP_LIBCUDA"])
    context = ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    return cuda


def must(code: int) -> None:
    """End the program on an error."""
    if code:
        sys.exit(f"CUDA error {code}")


def compute(cuda: ctypes.CDLL, log: Path) -> None:
    """Use the device for ever."""
    with log.open("ab", buffering=0) as file:
        while True:
            must(cuda.cuCtxSynchronize())
            file.write(b"step\n")
            time.sleep(0.005)


def managed(log: Path) -> None:
    """Hold managed memory."""
    cuda = open_driver()
    must(cuda.cuMemAllocManaged(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(_BYTES), 1))
    compute(cuda, log)


class IpcHandle(ctypes.Structure):
    """What one process gives another to open its memory."""

    _fields_ = (("bytes", ctypes.c_char * 64),)


def importer(log: Path) -> None:
    """Hold memory of another process."""
    cuda = open_driver()
    must(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(ctypes.c_uint64()), IpcHandle(), 1))
    compute(cuda, log)


def forking(log: Path) -> None:
    """Have a child that inherited the device, as a data loader's worker does."""
    cuda = open_driver()
    if os.fork() == 0:
        while True:
            time.sleep(1)
    compute(cuda, log)


def plain(log: Path) -> None:
    """Hold only a context."""
    compute(open_driver(), log)


KINDS = {each.__name__: each for each in (managed, importer, forking, plain)}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
