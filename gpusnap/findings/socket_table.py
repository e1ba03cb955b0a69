"""The kernel's own lists of sockets: TCP connections, and who a Unix socket is connected to."""

import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import msgspec

TCP_CLOSE, TCP_LISTEN = 7, 10
"""States as include/net/tcp_states.h numbers them."""

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_SOCK_DIAG_BY_FAMILY, _ERROR, _DONE = 20, 2, 3
_REQUEST, _DUMP = 0x1, 0x300
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_UNIX_REQUEST = struct.Struct("=BBHIIIII")  # struct unix_diag_req
_UNIX_MESSAGE = struct.Struct("=BBBBIII")  # struct unix_diag_msg
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr
_NAME, _PEER = 0, 2  # UNIX_DIAG_NAME, UNIX_DIAG_PEER
_SHOW_NAME, _SHOW_PEER = 1, 4
_BUFFER = 1 << 18


class Connection(msgspec.Struct, frozen=True):
    """One TCP socket.

    Attributes:
        local: Its own address and port.
        remote: Address and port of the other end.
        waiting: Of a listening socket, connections that were not accepted yet.
    """

    inode: int
    state: int
    local: str
    remote: str
    waiting: int


class UnixSocket(msgspec.Struct, frozen=True):
    """One Unix socket; a peer of 0 is none, an empty name too."""

    inode: int
    kind: int
    peer: int
    name: str


def tcp_sockets(pid: int) -> Iterator[Connection]:
    """The TCP sockets of a process's network namespace that have a state."""
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:  # gone, or a kernel without IPv6
            continue
        for line in lines:
            _, local, remote, state, queues, _, _, _, _, inode, *_ = line.split()
            yield Connection(
                inode=int(inode),
                state=int(state, 16),
                local=_address(local),
                remote=_address(remote),
                waiting=int(queues.partition(":")[2], 16),
            )


def _address(text: str) -> str:
    """``0100007F:0050`` as a person writes it: the kernel prints words of the machine's order.

    An IPv4 address that an IPv6 socket uses is written as the other end sees it.
    """
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = ip_address(struct.pack(f"={len(words)}I", *words))
    address = packed.ipv4_mapped or packed if isinstance(packed, IPv6Address) else packed
    bracketed = f"[{address}]" if isinstance(address, IPv6Address) else address
    return f"{bracketed}:{int(port, 16)}"


def unix_sockets() -> dict[int, UnixSocket]:
    """All Unix sockets of this network namespace by inode.

    Raises:
        OSError: The kernel does not tell.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
        body = _UNIX_REQUEST.pack(
            socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME | _SHOW_PEER, 0, 0
        )
        size = _HEADER.size + len(body)
        asked.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, 1, 0) + body)
        found = (_unix_socket(body) for body in _answers(asked))
        return {each.inode: each for each in found}


def _answers(asked: socket.socket) -> Iterator[bytes]:
    while True:
        data = asked.recv(_BUFFER)
        while len(data) >= _HEADER.size:
            size, kind, *_ = _HEADER.unpack_from(data)
            if kind == _DONE:
                return
            if kind == _ERROR:
                number = -struct.unpack_from("=i", data, _HEADER.size)[0]
                raise OSError(number, "The kernel does not list Unix sockets")
            yield data[_HEADER.size : size]
            data = data[-(-size // 4) * 4 :]


def _unix_socket(body: bytes) -> UnixSocket:
    _, kind, _, _, inode, *_ = _UNIX_MESSAGE.unpack_from(body)
    attributes = dict(_attributes(body[_UNIX_MESSAGE.size :]))
    peer = struct.unpack("=I", attributes.get(_PEER, bytes(4)))[0]
    raw = attributes.get(_NAME, b"")
    # An abstract name begins with a zero byte, which people write as an @
    name = raw.replace(b"\0", b"@", 1) if raw[:1] == b"\0" else raw.rstrip(b"\0")
    return UnixSocket(inode, kind, peer, name.decode(errors="replace"))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : size]
        data = data[max(-(-size // 4) * 4, _ATTRIBUTE.size) :]
