"""Reads files of CRIU's amdgpu plugin: eight bytes of length, then that many bytes.

They carry no magic number. Whatever a file claims is believed as far as the file is long.
"""

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from google.protobuf.message import DecodeError, Message

from gpusnap.errors import IntegrityError

HEADER = struct.Struct("<Q")
LARGEST = 64 << 20
"""Bytes of the longest message that is read: tens of thousands of buffers, and the driver's
private data of hundreds of queues."""
MOST = 1 << 20
"""Entries of the longest list that is decoded."""

_M = TypeVar("_M", bound=Message)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a plain file, no link and no pipe that would never answer; and its size in bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise IntegrityError(f"{path.name} is no plain file")
            yield file, status.st_size
    except OSError as error:
        raise IntegrityError(f"{path.name} cannot be read: {error.strerror}") from error


def _claimed(path: Path, file: BinaryIO) -> int:
    header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise IntegrityError(f"{path.name} is cut short: it has {len(header)} bytes")
    (length,) = HEADER.unpack(header)
    return int(length)


def read_message(path: Path, message: _M) -> _M:
    """Fill a message from a file.

    Raises:
        IntegrityError: The file is not one whole message, or longer than is ever needed.
    """
    with _opened(path) as (file, size):
        length = _claimed(path, file)
        if length != size - HEADER.size:
            raise IntegrityError(
                f"{path.name} claims {length} bytes and holds {size - HEADER.size}"
            )
        if length > LARGEST:
            raise IntegrityError(f"{path.name} is longer than {LARGEST} bytes")
        data = file.read(length)
    return decode(message, data, path.name)


def decode(message: _M, data: bytes, name: str) -> _M:
    """Fill a message from bytes.

    Raises:
        IntegrityError: They are not such a message.
    """
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise IntegrityError(f"{name} is damaged: an entry cannot be decoded") from error
    return message


def payload_size(path: Path, *, headed: bool = True) -> int:
    """The bytes of memory in a page file.

    Args:
        path: The file.
        headed: Whether its first eight bytes are its length. Those of ``amdgpu-drm-pages`` are
            not: CRIU 4.2 writes what happened to be on its stack.

    Raises:
        IntegrityError: It is no page file, or of another length than it claims.
    """
    with _opened(path) as (file, size):
        claimed = _claimed(path, file)
        payload = size - HEADER.size
        if headed and claimed != payload:
            raise IntegrityError(f"{path.name} claims {claimed} bytes and holds {payload}")
        return payload
