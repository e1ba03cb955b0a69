"""What CRIU's own image files say of a dump."""

import mmap
import os
import socket
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError, Message

from gpusnap.criu import images_pb2
from gpusnap.errors import IntegrityError

INVENTORY = "inventory.img"
TREE = "pstree.img"
FILES = "files.img"
_OWN_NETWORK = "netns-*.img"
"""What is there of a tree with a network namespace of its own, which CRIU makes anew."""
# criu/include/magic.h; the inventory is the one image without the mark that is common to all
COMMON_MAGIC = struct.pack("<I", 0x54564319)
INVENTORY_MAGIC = struct.pack("<I", 0x58313116)
TREE_MAGIC = struct.pack("<I", 0x50273030)
FILES_MAGIC = struct.pack("<I", 0x56303138)
MEMORY_MAGIC = struct.pack("<I", 0x57492820)
_ESTABLISHED = 1
"""State of a connected socket, as of TCP's."""
_EXTERNAL = 1
"""Mark of a socket that was none of the target's, to which one of the target's sends datagrams."""
_KINDS = frozenset((socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET))
LENGTH = struct.Struct("<I")
LARGEST = 16 << 20
"""Bytes: the files are some hundred to thousands; a longer one is not worth reading."""


class OpenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a dumped process had open or mapped.

    Attributes:
        path: As the process saw it.
        flags: Of open(2), as this machine numbers them.
        position: Where the process stood in it, in bytes; for one that is only appended to, the
            end of what it wrote last.
        size: Its length at the dump, in bytes; None for one that is only appended to.
    """

    path: str
    flags: int
    position: int
    size: int | None

    @property
    def written(self) -> bool:
        """Whether it is open for writing."""
        return self.flags & os.O_ACCMODE != os.O_RDONLY


class SocketFile(msgspec.Struct, frozen=True, kw_only=True):
    """The name in the file system of a socket that CRIU makes anew.

    Attributes:
        path: As the process saw it, absolute.
        user: Its owner.
        group: Its group.
    """

    path: str
    user: int = 0
    group: int = 0


class AbstractName(msgspec.Struct, frozen=True):
    """A name of a Unix socket that is in no file system, but in a network namespace.

    Attributes:
        kind: Type of the socket, such as SOCK_STREAM: each has names of its own.
        name: With the zero byte that it begins with.
    """

    kind: int
    name: bytes


def inventory_plugins(images: Path) -> tuple[str, ...]:
    """The names of the plugins that took part in a dump.

    Args:
        images: The folder of the dump.

    Raises:
        IntegrityError: The inventory is missing or damaged.
    """
    path = images / INVENTORY
    inventory = images_pb2.Inventory()
    _decode(inventory, _single(_read(path, INVENTORY_MAGIC), path), path)
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


def open_files(images: Path) -> tuple[OpenFile, ...]:
    """The ordinary files that the processes of a dump had open or mapped.

    Args:
        images: The folder of the dump.

    Raises:
        IntegrityError: The list of files is missing or damaged.
    """
    path = images / FILES
    return tuple(filter(None, map(_open_file, _files(path))))


def socket_files(images: Path) -> tuple[SocketFile, ...]:
    """The names that a restore of a dump gives to sockets in the file system.

    Args:
        images: The folder of the dump.

    Raises:
        IntegrityError: The list of files is missing or damaged.
    """
    return tuple(filter(None, map(_socket_file, _files(images / FILES))))


def abstract_names(images: Path) -> tuple[AbstractName, ...]:
    """The abstract names that a restore of a dump needs in gpusnap's network namespace.

    Args:
        images: The folder of the dump.

    Raises:
        IntegrityError: The list of files is damaged.
    """
    # Dumps of a CRIU before 3.6 have other lists
    if any(images.glob(_OWN_NETWORK)) or not (images / FILES).exists():
        return ()
    found = map(_abstract_name, _files(images / FILES))
    return tuple(dict.fromkeys(filter(None, found)))


def rename_sockets(images: Path, names: Mapping[AbstractName, AbstractName]) -> None:
    """Give sockets other abstract names. Those that are connected know each other by number.

    Args:
        images: A folder of links to images, as :func:`gpusnap.criu.seal.unsealed` makes it; the
            list of files becomes a file, and what the link led to stays as it is.
        names: What is to be named otherwise, and how.

    Raises:
        IntegrityError: The list of files is missing or damaged.
    """
    path = images / FILES
    magic = COMMON_MAGIC + FILES_MAGIC
    _replace(path, magic, [_renamed(message, names, path) for message in _read(path, magic)])


def advise_huge_pages(images: Path, pid: int, ranges: Iterable[range]) -> None:
    """Have CRIU advise huge pages for mappings that it makes, once it has made them.

    Args:
        images: A folder of links to images, as :func:`gpusnap.criu.seal.unsealed` makes it; the
            list of mappings becomes a file, and what the link led to stays as it is.
        pid: The process, as the images number it.
        ranges: Addresses, without overlap; of a mapping that is not wholly in one of them nothing
            changes.

    Raises:
        IntegrityError: The list of mappings is missing or damaged.
    """
    path = images / f"mm-{pid}.img"
    magic = COMMON_MAGIC + MEMORY_MAGIC
    with suppress(OSError):
        if path.stat().st_size > LARGEST:  # so many mappings that the advice is not worth it
            return
    memory = images_pb2.Memory()
    # What is not in gpusnap's own copy of the format is kept as it is
    _decode(memory, _single(_read(path, magic), path), path)
    wanted = sorted(ranges, key=lambda each: each.start)
    starts = [each.start for each in wanted]
    for mapping in memory.vmas:
        number = bisect_right(starts, mapping.start) - 1
        if number >= 0 and mapping.end <= wanted[number].stop:
            mapping.madv |= 1 << mmap.MADV_HUGEPAGE
    _replace(path, magic, [memory.SerializeToString()])


def _replace(path: Path, magic: bytes, messages: Iterable[bytes]) -> None:
    """Put a file with these messages in the place of a link."""
    path.unlink()
    with path.open("xb") as file:
        file.write(magic)
        for message in messages:
            file.write(LENGTH.pack(len(message)) + message)


def _renamed(message: bytes, names: Mapping[AbstractName, AbstractName], path: Path) -> bytes:
    entry = images_pb2.FileEntry()
    _decode(entry, message, path)
    name = _abstract_name(entry)
    if name is None or name not in names:
        return message
    # What is not in gpusnap's own copy of the format is kept as it is
    entry.usk.name = names[name].name
    return entry.SerializeToString()


def _abstract_name(entry: images_pb2.FileEntry) -> AbstractName | None:
    """None for what CRIU binds to no such name."""
    found = entry.usk
    if not found.name.startswith(b"\0") or _is_accepted(found) or found.uflags & _EXTERNAL:
        return None
    return AbstractName(found.type, found.name) if found.type in _KINDS else None


def _is_accepted(found: images_pb2.UnixSocket) -> bool:
    """Whether CRIU binds it to no name: a connection bears that of the socket that accepted it."""
    return found.type != socket.SOCK_DGRAM and found.state == _ESTABLISHED


def _socket_file(entry: images_pb2.FileEntry) -> SocketFile | None:
    """None for what has no such name, or which CRIU binds to none or makes way for itself."""
    found = entry.usk
    elsewhere = found.name_dir or found.deleted or _is_accepted(found)
    if not found.name.startswith(b"/") or elsewhere:
        return None
    owner = found.file_perms
    path = os.fsdecode(found.name.rstrip(b"\0"))
    return SocketFile(path=path, user=owner.uid, group=owner.gid)


def _files(path: Path) -> Iterator[images_pb2.FileEntry]:
    for message in _read(path, COMMON_MAGIC + FILES_MAGIC):
        entry = images_pb2.FileEntry()
        _decode(entry, message, path)
        yield entry


def _open_file(entry: images_pb2.FileEntry) -> OpenFile | None:
    if not entry.HasField("reg"):
        return None
    file = entry.reg
    size = file.size if file.HasField("size") else None
    return OpenFile(path=os.fsdecode(file.name), flags=file.flags, position=file.pos, size=size)


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


def _single(messages: tuple[bytes, ...], path: Path) -> bytes:
    if len(messages) != 1:
        raise IntegrityError(f"{path} is damaged: it holds {len(messages)} entries, not one")
    return messages[0]


def _messages(data: bytes, at: int) -> Iterator[bytes]:
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        if length > len(data) - at:
            raise struct.error("The last message ends beyond the file")
        yield data[at : at + length]
        at += length
