"""How much more memory this process may take: what the machine has, and what its cgroups allow."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec


class _Names(msgspec.Struct, frozen=True):
    """What a version of the kernel's control groups calls the figures of memory."""

    limit: str
    used: str
    reclaimable: str


_NAMES = {
    "cgroup2": _Names("memory.max", "memory.current", "inactive_file"),
    "cgroup": _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


class _Group(msgspec.Struct, frozen=True):
    """A control group of this process, and how far up it can be seen."""

    mount: Path
    below: PurePosixPath
    names: _Names

    def folders(self) -> Iterator[Path]:
        """Its own folder and those of its parents, each of which may set a limit."""
        for part in (self.below, *self.below.parents):
            yield self.mount / part


def available(root: Path = Path("/")) -> int:
    """Bytes that can be taken without swapping and without hitting a limit.

    Page cache that the kernel can drop counts as free, as it does in the kernel's own estimate
    for the machine: what a snapshot writes would else soon leave nothing.

    Args:
        root: Where /proc and /sys are.
    """
    left = (
        found
        for group in _groups(root)
        for folder in group.folders()
        if (found := _left(folder, group.names)) is not None
    )
    return max(0, min([_available_here(root), *left]))


def _available_here(root: Path) -> int:
    lines = (root / "proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _groups(root: Path) -> Iterator[_Group]:
    try:
        mounts = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
        memberships = _memberships((root / "proc/self/cgroup").read_text(errors="surrogateescape"))
    except OSError:  # a kernel without control groups
        return
    for line in mounts:
        fields, _, tail = line.partition(" - ")
        kind, _source, options = tail.split(" ", maxsplit=2)
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            top, point = fields.split(" ")[3:5]
            below = _below(memberships.get(kind, "/"), top)
            yield _Group(root / point.lstrip("/"), below, _NAMES[kind])


def _memberships(text: str) -> dict[str, str]:
    """Path of the memory controller's group by the version of control groups."""
    found = {}
    for line in text.splitlines():
        number, controllers, path = line.split(":", maxsplit=2)
        if number == "0":
            found["cgroup2"] = path
        elif "memory" in controllers.split(","):
            found["cgroup"] = path
    return found


def _below(path: str, top: str) -> PurePosixPath:
    """A group's path within a mount, which in a container shows a part of all groups only."""
    group = PurePosixPath(path)
    if group.is_relative_to(top):
        return group.relative_to(top)
    return PurePosixPath()


def _left(folder: Path, names: _Names) -> int | None:
    """Bytes up to the group's limit; None where it has none or cannot be read."""
    try:
        limit = (folder / names.limit).read_text().strip()
        used = int((folder / names.used).read_text())
        stat = (folder / "memory.stat").read_text().split()
    except OSError:
        return None
    if limit == "max":
        return None
    figures = dict(zip(stat[::2], stat[1::2], strict=True))
    return int(limit) - used + int(figures.get(names.reclaimable, "0"))
