"""Sockets and pipes that CRIU cannot save, or that lead out of the tree."""

import os
import socket
from collections.abc import Iterator
from functools import cached_property

import msgspec

from gpusnap.criu import Criu
from gpusnap.findings.process import own_namespace
from gpusnap.findings.socket_table import (
    TCP_CLOSE,
    TCP_LISTEN,
    Connection,
    UnixSocket,
    tcp_sockets,
    unix_sockets,
)
from gpusnap.findings.view import Descriptor, Seen, View, holders
from gpusnap.types import Finding, Severity

_SAVED_PROTOCOLS = ("UNIX", "TCP", "UDP", "RAW", "PACKET", "NETLINK")
_INTERNET = ("TCP", "UDP", "RAW", "PACKET")
_SINCE = (4, 2, 0)
"""The CRIU that asks a socket only for options of its family."""
_ACCESS = 3  # O_ACCMODE


class Sockets(msgspec.Struct, frozen=True, dict=True):
    """The sockets of a tree, each descriptor with the kernel's name of its protocol."""

    view: View

    @cached_property
    def protocols(self) -> tuple[tuple[Seen, Descriptor, str], ...]:
        """Every socket; the protocol is empty where the kernel does not tell it."""
        found = ((seen, each) for seen in self.view.seen for each in seen.linked("socket:["))
        return tuple((seen, each, _protocol(each)) for seen, each in found)

    def of(self, *protocols: str) -> Iterator[tuple[Seen, Descriptor]]:
        """The sockets whose protocol begins with one of these."""
        return ((seen, each) for seen, each, name in self.protocols if name.startswith(protocols))

    @cached_property
    def outside(self) -> tuple[tuple[Seen, Descriptor, UnixSocket], ...]:
        """Unix sockets whose peer is a socket of no process of the tree, with that peer."""
        own = {each.inode for _, each in self.of("UNIX")}
        known = self._unix() if own else {}
        found = []
        for seen, each in self.of("UNIX"):
            mine = known.get(each.inode)
            if mine is not None and mine.peer not in own and mine.peer in known:
                found.append((seen, each, known[mine.peer]))
        return tuple(found)

    @cached_property
    def tcp(self) -> tuple[tuple[Seen, Connection], ...]:
        """The TCP sockets that have a state."""
        own = {each.inode: seen for seen, each in self.of("TCP")}
        if not own:
            return ()
        known = tcp_sockets(self.view.target.root.pid)
        return tuple(
            (own[each.inode], each)
            for each in known
            if each.inode in own and each.state != TCP_CLOSE
        )

    @cached_property
    def connections(self) -> tuple[tuple[Seen, Connection, Seen | None], ...]:
        """The TCP connections, each with the process of the tree at the other end, if any."""
        found = [(seen, each) for seen, each in self.tcp if each.state != TCP_LISTEN]
        ends = {(each.local, each.remote): seen for seen, each in found}
        return tuple((seen, each, ends.get((each.remote, each.local))) for seen, each in found)

    def _unix(self) -> dict[int, UnixSocket]:
        if self.view.target.root.namespaces.get("net") != own_namespace("net"):
            return {}  # the kernel lists those of our own namespace alone
        try:
            return unix_sockets()
        except OSError:
            return {}


def _protocol(descriptor: Descriptor) -> str:
    try:
        raw = os.getxattr(descriptor.path, "system.sockprotoname")
    except OSError:
        return ""
    return raw.rstrip(b"\0").decode(errors="replace")


def check_sockets(
    sockets: Sockets, criu: Criu | None, *, tcp_established: bool
) -> Iterator[Finding]:
    """Find the sockets that CRIU would refuse.

    Args:
        sockets: Those of the tree.
        criu: The CRIU that is used.
        tcp_established: Whether the user lets CRIU save connections.
    """
    yield from _unknown(sockets)
    yield from _too_new(sockets, criu)
    yield from _connections(sockets, tcp_established=tcp_established)


def _unknown(sockets: Sockets) -> Iterator[Finding]:
    for seen, each, protocol in sockets.protocols:
        if protocol and not protocol.startswith(_SAVED_PROTOCOLS):
            yield Finding(
                code="socket-protocol",
                severity=Severity.ERROR,
                text=f"{seen.label} has a socket of protocol {protocol} open as descriptor "
                f"{each.number}, which CRIU cannot save",
                cure="Let it close that socket before the checkpoint",
                pid=seen.pid,
            )


def _too_new(sockets: Sockets, criu: Criu | None) -> Iterator[Finding]:
    if criu is None or criu.version >= _SINCE or _kernel_answers():
        return
    for pid, (seen, each) in {
        seen.pid: (seen, each) for seen, each in sockets.of(*_INTERNET)
    }.items():
        yield Finding(
            code="socket-old-criu",
            severity=Severity.ERROR,
            text=f"{seen.label} has a network socket open as descriptor {each.number}, and CRIU "
            f"{criu.version_text} cannot save those on this kernel",
            cure="Name a CRIU 4.2 or newer in GPUSNAP_CRIU",
            pid=pid,
        )


def _kernel_answers() -> bool:
    """Whether a network socket still answers what CRIU before 4.2 asks; Linux 6.16 ended that."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED)
    except OSError:
        return False
    return True


def _connections(sockets: Sockets, *, tcp_established: bool) -> Iterator[Finding]:
    for seen, each in sockets.tcp:
        if each.state == TCP_LISTEN:
            yield from _in_flight(seen, each)
    if not tcp_established:
        yield from _connected(sockets)


def _connected(sockets: Sockets) -> Iterator[Finding]:
    """Connections that lead out of the tree; both ends of the others are saved together."""
    seen = {each.pid: each for each, *_ in sockets.connections}
    outside: dict[int, list[Connection]] = {}
    for each, connection, peer in sockets.connections:
        if peer is None:
            outside.setdefault(each.pid, []).append(connection)
    for pid, connections in outside.items():
        more = f" and {len(connections) - 1} more" if len(connections) > 1 else ""
        yield Finding(
            code="tcp-established",
            severity=Severity.ERROR,
            text=f"{seen[pid].label} has a TCP connection to {connections[0].remote}{more}",
            cure="Checkpoint with --tcp-established and restore at the same address, or let it "
            "close the connection before",
            pid=pid,
        )


def _in_flight(seen: Seen, listening: Connection) -> Iterator[Finding]:
    if listening.waiting:
        yield Finding(
            code="tcp-in-flight",
            severity=Severity.ERROR,
            text=f"{seen.label} has TCP connections that it has not accepted yet "
            f"({listening.waiting}), which CRIU cannot save",
            cure="Try again when they are accepted",
            pid=seen.pid,
        )


def check_unix_peers(sockets: Sockets, *, external: bool) -> Iterator[Finding]:
    """Find Unix sockets that are connected to a process outside.

    Args:
        sockets: Those of the tree.
        external: Whether datagram sockets may be.
    """
    outside = sockets.outside
    if not outside:
        return
    names = holders({peer.inode for *_, peer in outside}, "socket", sockets.view.target)
    for seen, each, peer in outside:
        if external and passes(peer):
            continue
        owner = names.get(peer.inode, "a process outside")
        named = f" at {peer.name}" if peer.name else ""
        yield Finding(
            code="unix-socket-outside",
            severity=Severity.ERROR,
            text=f"{seen.label} is connected to the socket{named} of {owner} by descriptor "
            f"{each.number}, and CRIU cannot save one half of a connection",
            cure="End that connection before the checkpoint, or checkpoint both processes "
            "together; a program of a service writes its output to a file instead",
            pid=seen.pid,
        )


def passes(peer: UnixSocket) -> bool:
    """Whether CRIU can let a socket connect to this one again: by its name, as datagrams do."""
    return peer.kind == socket.SOCK_DGRAM and bool(peer.name)


def check_pipes(view: View) -> Iterator[Finding]:
    """Find pipes whose other end a process outside holds: after a restore it is closed."""
    ends: dict[int, set[int]] = {}
    owners: dict[int, tuple[Seen, Descriptor]] = {}
    for seen, each in view.descriptors:
        if each.link.startswith("pipe:["):
            owners.setdefault(each.inode, (seen, each))
            ends.setdefault(each.inode, set()).update(_directions(each))
    open_ended = {inode for inode, directions in ends.items() if len(directions) == 1}
    if not open_ended:
        return
    for inode, owner in sorted(holders(open_ended, "pipe", view.target).items()):
        seen, each = owners[inode]
        does = "reads from" if ends[inode] == {os.O_RDONLY} else "writes to"
        yield Finding(
            code="pipe-outside",
            severity=Severity.WARNING,
            text=f"{seen.label} {does} process {owner} through the pipe at descriptor "
            f"{each.number}, which will have no other end after a restore",
            cure="Let it read from and write to files",
            pid=seen.pid,
        )


def _directions(descriptor: Descriptor) -> set[int]:
    flags = dict(descriptor.info()).get("flags", "0")
    mode = int(flags, 8) & _ACCESS
    return {os.O_RDONLY, os.O_WRONLY} if mode == os.O_RDWR else {mode}
