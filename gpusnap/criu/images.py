"""What CRIU's own image files say of a dump."""

import struct
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError, Message

from gpusnap.criu import images_pb2
from gpusnap.errors import IntegrityError

INVENTORY = "inventory.img"
TREE = "pstree.img"
# criu/include/magic.h; the inventory is the one image without the mark that is common to all
COMMON_MAGIC = struct.pack("<I", 0x54564319)
INVENTORY_MAGIC = struct.pack("<I", 0x58313116)
TREE_MAGIC = struct.pack("<I", 0x50273030)
LENGTH = struct.Struct("<I")
LARGEST = 16 << 20
"""Bytes: both files are some hundred; a longer one is not worth reading."""


def inventory_plugins(images: Path) -> tuple[str, ...]:
    """The names of the plugins that took part in a dump.

    Args:
        images: The folder of the dump.

    Raises:
        IntegrityError: The inventory is missing or damaged.
    """
    path = images / INVENTORY
    messages = _read(path, INVENTORY_MAGIC)
    if len(messages) != 1:
        raise IntegrityError(f"{path} is damaged: it holds {len(messages)} entries, not one")
    inventory = images_pb2.Inventory()
    _decode(inventory, messages[0], path)
    return tuple(inventory.plugins_entry.plugins)


def tree_pids(images: Path) -> tuple[int, ...]:
    """The PIDs of the processes in a dump, as the target's PID namespace numbers them.

    Args:
        images: The folder of the dump.

    Raises:
        IntegrityError: The list is missing or damaged.
    """
    return tuple(entry.pid for entry in _tree(images))


def taken_pids(images: Path) -> frozenset[int]:
    """All numbers that a restore of a dump takes: of threads, groups and sessions too.

    A group or session whose leader has ended keeps its number, for which CRIU makes a process.

    Args:
        images: The folder of the dump.

    Raises:
        IntegrityError: The list of processes is missing or damaged.
    """
    numbers = (
        number
        for entry in _tree(images)
        for number in (entry.pid, entry.pgid, entry.sid, *entry.threads)
    )
    return frozenset(filter(None, numbers))


def _tree(images: Path) -> Iterator[images_pb2.TreeEntry]:
    path = images / TREE
    for message in _read(path, COMMON_MAGIC + TREE_MAGIC):
        entry = images_pb2.TreeEntry()
        _decode(entry, message, path)
        yield entry


def _decode(entry: Message, data: bytes, path: Path) -> None:
    """Fill ``entry``, whose required parts must all be there: not every decoder asks for them."""
    try:
        entry.ParseFromString(data)
    except DecodeError as error:
        raise IntegrityError(f"{path} is damaged: an entry cannot be decoded") from error
    if not entry.IsInitialized():
        raise IntegrityError(f"{path} is damaged: an entry lacks a part")


def _read(path: Path, magic: bytes) -> tuple[bytes, ...]:
    """The messages of an image file, each checked against the length before it."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > LARGEST:
        raise IntegrityError(f"{path} is longer than {LARGEST} bytes")
    if not data.startswith(magic):
        raise IntegrityError(f"{path} does not begin as the image that its name says")
    try:
        return tuple(_messages(data, len(magic)))
    except struct.error as error:
        raise IntegrityError(f"{path} is cut short") from error


def _messages(data: bytes, at: int) -> Iterator[bytes]:
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        if length > len(data) - at:
            raise struct.error("The last message ends beyond the file")
        yield data[at : at + length]
        at += length
