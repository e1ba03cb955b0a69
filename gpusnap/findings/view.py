"""A process tree as it was seen once: what each process has open and mapped."""

import os
import stat
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from gpusnap.errors import NotFoundError, PrivilegeError
from gpusnap.target import Mapping, read_maps, read_status
from gpusnap.types import Process, Target

DELETED = " (deleted)"


class Descriptor(msgspec.Struct, frozen=True):
    """One open file of a process.

    Attributes:
        link: What the kernel calls the file: a path, or the kind of what has none.
    """

    pid: int
    number: int
    link: str

    @property
    def path(self) -> str:
        """Where the kernel shows the file itself."""
        return f"/proc/{self.pid}/fd/{self.number}"

    @property
    def inode(self) -> int:
        """The number in ``socket:[1234]`` and the like; 0 for others."""
        number = self.link.rpartition("[")[2].rstrip("]")
        return int(number) if number.isdigit() else 0

    def stat(self) -> os.stat_result | None:
        """What the kernel says of the file; None once it is closed."""
        try:
            return os.stat(self.path)  # noqa: PTH116 - once for each of thousands
        except OSError:
            return None

    def info(self) -> list[tuple[str, str]]:
        """The lines of its fdinfo as name and value, none once it is closed."""
        try:
            with open(f"/proc/{self.pid}/fdinfo/{self.number}", "rb", 0) as file:  # noqa: PTH123
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        lines = (line.partition(":") for line in text.splitlines())
        return [(name, value.strip()) for name, _, value in lines]


class Seen(msgspec.Struct, frozen=True, dict=True):
    """One process; of what the kernel does not let gpusnap see, nothing."""

    process: Process
    descriptors: tuple[Descriptor, ...]
    maps: tuple[Mapping, ...]
    status: dict[str, str]

    @property
    def pid(self) -> int:
        """The process's number."""
        return self.process.pid

    @property
    def label(self) -> str:
        """How a sentence begins that is about it."""
        return f"Process {self.pid} ({self.process.name})"

    @cached_property
    def character_devices(self) -> tuple[tuple[Descriptor, int], ...]:
        """Open character devices, each with its number."""
        paths = (each for each in self.descriptors if each.link.startswith("/dev/"))
        found = ((each, each.stat()) for each in paths)
        return tuple(
            (each, seen.st_rdev)
            for each, seen in found
            if seen is not None and stat.S_ISCHR(seen.st_mode)
        )

    def linked(self, prefix: str) -> Iterator[Descriptor]:
        """The descriptors whose link begins so."""
        return (each for each in self.descriptors if each.link.startswith(prefix))


class View(msgspec.Struct, frozen=True):
    """A tree, as far as it could be looked at.

    Attributes:
        target: The tree.
        seen: Its processes without those that ended meanwhile.
        ended: PIDs of those.
        claimed: PIDs with device state, whose device files are their backend's business.
    """

    target: Target
    seen: tuple[Seen, ...]
    ended: tuple[int, ...]
    claimed: frozenset[int]

    @property
    def descriptors(self) -> Iterator[tuple[Seen, Descriptor]]:
        """Every descriptor of the tree with its process."""
        return ((seen, each) for seen in self.seen for each in seen.descriptors)


def look(target: Target, claimed: tuple[int, ...]) -> View:
    """Read what the processes of a tree have open and mapped; changes nothing."""
    seen, ended = [], []
    for process in target.processes:
        try:
            seen.append(_look_at(process))
        except NotFoundError:
            ended.append(process.pid)
    return View(target, tuple(seen), tuple(ended), frozenset(claimed))


def _look_at(process: Process) -> Seen:
    return Seen(
        process=process,
        descriptors=tuple(_descriptors(process.pid)),
        maps=_maps(process.pid),
        status=read_status(process.pid),
    )


def _maps(pid: int) -> tuple[Mapping, ...]:
    try:
        return read_maps(pid)
    except PrivilegeError:  # there is a finding of its own for what gpusnap lacks
        return ()


def _descriptors(pid: int) -> Iterator[Descriptor]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in sorted(names, key=int):
        try:
            yield Descriptor(pid, int(name), os.readlink(f"{folder}/{name}"))
        except OSError:  # closed meanwhile
            continue


def holders(inodes: set[int], kind: str, inside: Target) -> dict[int, str]:
    """Name processes outside a tree that hold pipes or sockets.

    Args:
        inodes: Their numbers.
        kind: ``pipe`` or ``socket``.
        inside: The tree.

    Returns:
        A process like ``12 (tee)`` for each number that one was found for.
    """
    wanted = {f"{kind}:[{inode}]": inode for inode in inodes}
    found: dict[int, str] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if len(found) == len(wanted):
            break
        if pid in inside.pids:
            continue
        for each in _descriptors(pid):
            if each.link in wanted:
                found.setdefault(wanted[each.link], f"{pid} ({_name(pid)})")
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "it just ended"
