"""Abstract Unix sockets of a snapshot whose names are in use, and what a copy calls its own.

Such a name belongs to the network namespace, which is that of the machine for all copies of a
snapshot, and can be had once. CUDA gives one to each process that uses it.
"""

import errno
import hashlib
import itertools
import socket
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from gpusnap.criu import AbstractName, abstract_names
from gpusnap.datapath.files import printable
from gpusnap.types import Finding, Severity

_LONGEST = 107
"""Bytes of a name that is made here; the kernel takes one more."""
_MOST_HELD = 64
"""Names that are reserved at most: each takes a descriptor."""
_DRIVERS_OWN = b"\0cuda-uvmfd-"
"""How CUDA begins names that nobody but its own library knows of."""


class Reservations:
    """Names that this restore has found free, kept from another that begins before CRIU is through.

    CRIU binds them much later, so a reservation is a name of gpusnap's own, made from the one
    that is meant. It ends with the context, or with gpusnap.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, name: AbstractName) -> bool:
        """Reserve a name; False where another restore has reserved it."""
        if len(self._held) >= _MOST_HELD:
            return True
        digest = hashlib.sha256(b"%d %b" % (name.kind, name.name)).hexdigest()
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if _binds(holder, f"\0gpusnap-restore-{digest}".encode()):
            self._held.append(holder)
            return True
        holder.close()
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ExitStack() as closing:
            for holder in self._held:
                closing.callback(holder.close)


class SocketNames(msgspec.Struct, frozen=True):
    """What becomes of the abstract names of a snapshot.

    Attributes:
        findings: Those that are in use: an error each, or for a copy what it has instead.
        renamed: For a copy, each of them with the name that it has instead.
    """

    findings: tuple[Finding, ...]
    renamed: dict[AbstractName, AbstractName] = {}


def compare_names(images: Path, reservations: Reservations, *, copy: bool) -> SocketNames:
    """Look which abstract names of a snapshot are in use.

    Args:
        images: The folder of CRIU's images.
        reservations: Gets the names that were found free.
        copy: Whether sockets may come back under other names.

    Raises:
        IntegrityError: The images are damaged.
    """
    wanted = abstract_names(images)
    taken = [name for name in wanted if not _is_free(name, reservations)]
    if not copy:
        return SocketNames(_once(map(_taken, taken)))
    renamed = _choose_names(wanted, taken, reservations)
    return SocketNames(_once(itertools.starmap(_renamed, renamed.items())), renamed)


def _once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sockets of two types may have one name, of which all was said by one finding."""
    return tuple(dict.fromkeys(findings))


def _choose_names(
    wanted: Collection[AbstractName], taken: Collection[AbstractName], reservations: Reservations
) -> dict[AbstractName, AbstractName]:
    chosen: dict[AbstractName, AbstractName] = {}
    not_free = set(wanted)
    for name in taken:
        chosen[name] = _next_free(name, not_free, reservations)
        not_free.add(chosen[name])
    return chosen


def _next_free(
    name: AbstractName, not_free: Collection[AbstractName], reservations: Reservations
) -> AbstractName:
    """The first free one of its variants: sockets that bear all of them there cannot be."""
    variants = (AbstractName(name.kind, _variant(name.name, at)) for at in itertools.count(2))
    return next(each for each in variants if each not in not_free and _is_free(each, reservations))


def _variant(name: bytes, number: int) -> bytes:
    """The name with a number at its end; zero bytes at the end of a name belong to it and stay."""
    stem = name[:1] + name[1:].rstrip(b"\0")
    padded = len(stem) < len(name)
    end = b"-%d" % number + (b"\0" if padded else b"")
    made = stem[: _LONGEST - len(end)] + end
    return made.ljust(len(name), b"\0") if padded else made


def _taken(name: AbstractName) -> Finding:
    return Finding(
        code="abstract-socket-taken",
        severity=Severity.ERROR,
        text=f"The abstract Unix socket {_shown(name)} of the snapshot is in use",
        cure="End the process that has it (`ss -xap` lists sockets and processes), or restore "
        "with --new-pids, which gives the copy's another name",
    )


def _renamed(old: AbstractName, new: AbstractName) -> Finding:
    private = old.name.startswith(_DRIVERS_OWN)
    return Finding(
        code="abstract-socket-renamed",
        severity=Severity.INFO if private else Severity.WARNING,
        text=f"The abstract Unix socket {_shown(old)} is in use: the copy has {_shown(new)}",
        cure=None if private else "Let programs that look for the copy's use that name",
    )


def _is_free(name: AbstractName, reservations: Reservations) -> bool:
    return reservations.take(name) and not _in_use(name)


def _in_use(name: AbstractName) -> bool:
    """Ask the kernel by having the name for a moment.

    Its lists show connections too, which bear the name of a listener that may be gone: then the
    name is free.
    """
    with socket.socket(socket.AF_UNIX, name.kind) as probe:
        return not _binds(probe, name.name)


def _binds(unbound: socket.socket, name: bytes) -> bool:
    """Give a socket a name; False if that is in use. Whatever else is wrong, CRIU will say."""
    try:
        unbound.bind(name)
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _shown(name: AbstractName) -> str:
    """A name as ``ss`` writes it, with an @ for a zero byte; those at the end say nothing."""
    text = name.name.rstrip(b"\0").replace(b"\0", b"@").decode(errors="backslashreplace")
    return printable(text or "@")
