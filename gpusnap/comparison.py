"""What changed between two snapshots of a program."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import msgspec

from gpusnap.datapath import MemoryChange, compare_memory
from gpusnap.hookspecs import Progress
from gpusnap.repository import FileDigest, Manifest, Snapshot
from gpusnap.types import Device

_IMAGES = "criu/"


class MemoryTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All memory saved past CRIU, in bytes; see :class:`gpusnap.datapath.MemoryChange`."""

    equal: int
    changed: int
    only_a: int
    only_b: int


class ProcessChange(msgspec.Struct, frozen=True, kw_only=True):
    """A PID that stands for another command line; None where a snapshot has no such process."""

    pid: int
    a: tuple[str, ...] | None
    b: tuple[str, ...] | None


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that differs, in words; None where a snapshot does not tell.

    Attributes:
        field: Its name in the manifest, such as ``driver_version`` or ``options.file_locks``.
    """

    field: str
    a: str | None
    b: str | None


class ImageChange(msgspec.Struct, frozen=True, kw_only=True):
    """An image of CRIU's that differs: its length in bytes, None where there is none."""

    path: str
    a: int | None
    b: int | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How two snapshots differ; ``a`` is of the first and ``b`` of the second.

    Attributes:
        a: Folder of the first snapshot.
        b: Folder of the second.
        total: The memory of all ranges.
        memory: Ranges of memory, those with most changes first.
        processes: Those that came, went, or run another command line.
        fields: Options, driver, devices and facts of the host.
        images: Files of CRIU's.
    """

    a: str
    b: str
    total: MemoryTotal
    memory: tuple[MemoryChange, ...]
    processes: tuple[ProcessChange, ...]
    fields: tuple[FieldChange, ...]
    images: tuple[ImageChange, ...]


def compare_snapshots(
    a: Snapshot, b: Snapshot, progress: Progress, *, workers: int | None = None
) -> Comparison:
    """Compare two snapshots.

    Memory that CRIU saved itself is compared as files, not page by page.

    Args:
        a: The first, usually the older one.
        b: The second.
        progress: Called with bytes compared and bytes in all.
        workers: Threads; None for one a CPU.

    Raises:
        IntegrityError: An index or a pack is damaged; names it and the chunk.
        BusyError: One is being removed.
        PrivilegeError: One may not be read.
    """
    with ExitStack() as held:
        for snapshot in (a, b):
            held.enter_context(snapshot.hold())
        folders = (each.regions if each.regions.is_dir() else None for each in (a, b))
        threads = workers or len(os.sched_getaffinity(0))
        memory = compare_memory(*folders, workers=threads, progress=progress)
    return Comparison(
        a=str(a.path),
        b=str(b.path),
        total=_total(memory),
        memory=tuple(sorted(memory, key=_most_first)),
        processes=tuple(_processes(a.manifest, b.manifest)),
        fields=tuple(_fields(a.manifest, b.manifest)),
        images=tuple(_images(a.manifest, b.manifest)),
    )


def _most_first(change: MemoryChange) -> tuple[int, int, str, int]:
    return -change.different, change.pid or 0, change.image or "", change.start


def _total(memory: tuple[MemoryChange, ...]) -> MemoryTotal:
    return MemoryTotal(
        equal=sum(each.equal for each in memory),
        changed=sum(each.changed for each in memory),
        only_a=sum(each.only_a for each in memory),
        only_b=sum(each.only_b for each in memory),
    )


def _processes(a: Manifest, b: Manifest) -> Iterator[ProcessChange]:
    before, after = (
        {process.pid: process.command or (process.name,) for process in manifest.target.processes}
        for manifest in (a, b)
    )
    for pid in sorted(before.keys() | after.keys()):
        if before.get(pid) != after.get(pid):
            yield ProcessChange(pid=pid, a=before.get(pid), b=after.get(pid))


def _fields(a: Manifest, b: Manifest) -> Iterator[FieldChange]:
    before, after = _facts(a), _facts(b)
    for field in (*before, *sorted(after.keys() - before.keys())):
        if before.get(field) != after.get(field):
            yield FieldChange(field=field, a=before.get(field), b=after.get(field))


def _facts(manifest: Manifest) -> Mapping[str, str | None]:
    """What is compared besides processes and memory, under the names of the manifest."""
    facts: dict[str, object] = {
        "backend": manifest.backend,
        "engine": manifest.engine.value,
        "driver_version": manifest.driver_version,
        "claimed": ", ".join(map(str, manifest.claimed)),
    }
    for part in ("options", "host"):
        values = msgspec.structs.asdict(getattr(manifest, part))
        facts |= {f"{part}.{name}": value for name, value in values.items()}
    facts |= {f"devices[{each.index}]": _identity(each) for each in manifest.devices}
    return {name: _words(value) for name, value in facts.items()}


def _identity(device: Device) -> str:
    """What of a device stays the same while it works."""
    lasting = (device.model, device.uuid, device.architecture, device.memory_total)
    return ", ".join(str(each) for each in lasting if each is not None)


def _words(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)


def _images(a: Manifest, b: Manifest) -> Iterator[ImageChange]:
    before, after = _image_files(a), _image_files(b)
    for path in sorted(before.keys() | after.keys()):
        one, other = before.get(path), after.get(path)
        if one is None or other is None or not one.same_bytes(other):
            yield ImageChange(
                path=path, a=one.size if one else None, b=other.size if other else None
            )


def _image_files(manifest: Manifest) -> Mapping[str, FileDigest]:
    return {file.path: file for file in manifest.files if file.path.startswith(_IMAGES)}
