"""The version of KFD's interface, which tells whether it can be checkpointed."""

import fcntl
import os
import struct

import msgspec

from gpusnap.errors import GpusnapError
from gpusnap.worker import Worker

_NODE = "/dev/kfd"
_GET_VERSION = 0x8008_4B01
"""``AMDKFD_IOC_GET_VERSION`` of the kernel's ``include/uapi/linux/kfd_ioctl.h``."""
NEEDED = (1, 8)
"""The first version that knows ``AMDKFD_IOC_CRIU_OP``."""
_ENTRY = "gpusnap_amd.kfd:Kfd"
_DEADLINE_US = 10_000_000


class Kfd:
    """KFD's node; runs in a worker process, since to open it makes a process one of KFD's."""

    def version(self) -> tuple[int, int]:
        """Ask for major and minor version."""
        descriptor = os.open(_NODE, os.O_RDWR | os.O_CLOEXEC)
        try:
            answer = fcntl.ioctl(descriptor, _GET_VERSION, bytes(8))
        finally:
            os.close(descriptor)
        major, minor = struct.unpack("II", answer)
        return major, minor


def find_obstacle() -> str | None:
    """Why KFD cannot be checkpointed here, in a sentence; None where it can."""
    worker = Worker(_ENTRY)
    try:
        answer = worker.call("version", deadline_us=_DEADLINE_US)
    except GpusnapError as error:
        return f"KFD does not tell its version: {error.text}"
    finally:
        worker.close()
    major, minor = msgspec.convert(answer, tuple[int, int])
    if major == NEEDED[0] and minor >= NEEDED[1]:
        return None
    needed = ".".join(map(str, NEEDED))
    return f"KFD's interface has version {major}.{minor}; a checkpoint needs {needed} or newer"
