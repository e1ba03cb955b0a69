"""A descriptor that CRIU refuses, held while a process has state on a simulated device.

A real device does the same by its mappings and descriptors: a dump of a process that was not
checkpointed on its device fails, instead of leaving the device memory out. Verified with CRIU
4.1.1: "Can't dump file ... of that type" for the first two, "Can't lookup mount" for the third.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator

from gpusnap.testing.errors import SimulatedDeviceError

DEVICE_FILES = ("anon_inode:[landlock-ruleset]", "anon_inode:[userfaultfd]", "/gpusnap-")
"""How the kernel names these descriptors."""

_LANDLOCK_CREATE_RULESET = 444
_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_UFFD_USER_MODE_ONLY = 1
_ANY_RIGHT = (1).to_bytes(8, "little")


def _landlock() -> int:
    """An unused Landlock ruleset; nothing is restricted until it is enforced."""
    return int(ctypes.CDLL(None).syscall(_LANDLOCK_CREATE_RULESET, _ANY_RIGHT, len(_ANY_RIGHT), 0))


def _userfaultfd() -> int:
    number = _USERFAULTFD.get(os.uname().machine, -1)
    return int(ctypes.CDLL(None).syscall(number, _UFFD_USER_MODE_ONLY | os.O_CLOEXEC))


def _message_queue() -> int:
    libc = ctypes.CDLL(None)
    name = f"/gpusnap-{os.getpid()}-{os.urandom(8).hex()}".encode()
    descriptor = libc.mq_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600, None)
    libc.mq_unlink(name)
    return int(descriptor)


# None needs a privilege; the first that this kernel and its seccomp filters allow is used.
_KINDS: tuple[Callable[[], int], ...] = (_landlock, _userfaultfd, _message_queue)


def _candidates() -> Iterator[int]:
    for kind in _KINDS:
        with contextlib.suppress(AttributeError):  # a C library without that function
            yield kind()


class Guard:
    """At most one open descriptor that CRIU cannot dump."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def open(self) -> None:
        """Make a dump fail from now on.

        Raises:
            SimulatedDeviceError: This kernel offers nothing that CRIU would refuse.
        """
        if self._descriptor is not None:
            return
        self._descriptor = next((each for each in _candidates() if each >= 0), None)
        if self._descriptor is None:
            msg = "This kernel offers no descriptor that would keep CRIU from dumping"
            raise SimulatedDeviceError(msg)

    def close(self) -> None:
        """Let a dump succeed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None
