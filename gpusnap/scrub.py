"""Forked children that inherited devices: what they hold of them is taken away.

A process that uses a device and forks leaves its children mappings and descriptors of the
device's files that are of no use to them: a driver's state does not survive a fork. The data
loaders of training programs are such children. CRIU can save none of that, and refuses the whole
tree. So it is unmapped and closed in the children, once the device's state has been saved.
"""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from gpusnap.errors import NotFoundError, TargetError
from gpusnap.native import call_inside, same_file
from gpusnap.target import Mapping, identity, read_maps, same
from gpusnap.types import Claim, Process, ProcessId, Target


class _Numbers(msgspec.Struct, frozen=True):
    """The kernel's numbers of system calls."""

    close: int
    munmap: int


_NUMBERS = {"x86_64": _Numbers(3, 11), "aarch64": _Numbers(57, 215)}


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """What a process without device state inherited of a device.

    Attributes:
        process: The process.
        mappings: Mappings of the device's files.
        descriptors: Descriptors of them, by number, with the path of each.
    """

    process: ProcessId
    mappings: tuple[Mapping, ...]
    descriptors: tuple[tuple[int, str], ...]


def find_leftovers(target: Target, claim: Claim) -> tuple[Leftover, ...]:
    """What the processes without device state inherited from those with.

    A descriptor that such a process opened itself, for NVML say, is none: it may be in use.

    Args:
        target: The tree, of which the claimed processes still hold their device.
        claim: Who holds one, and which files are the device's.
    """
    if platform.machine() not in _NUMBERS or not claim.device_files:
        return ()
    found = (
        _inherited(process, claim) for process in target.processes if process.pid not in claim.pids
    )
    return tuple(each for each in found if each.mappings or each.descriptors)


def device_mappings(pid: int, prefixes: Sequence[str]) -> tuple[Mapping, ...]:
    """Mappings of files whose path begins in one of several ways."""
    return tuple(each for each in read_maps(pid) if each.path.startswith(tuple(prefixes)))


def device_descriptors(pid: int, prefixes: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Descriptors of files whose path begins in one of several ways, with that path."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                path = str(link.readlink())
                if path.startswith(tuple(prefixes)):
                    found.append((int(link.name), path))
    return tuple(sorted(found))


def _inherited(process: Process, claim: Claim) -> Leftover:
    pid = process.pid
    own: set[Mapping] = set()
    for holder in claim.pids:
        with suppress(NotFoundError):
            own.update(device_mappings(holder, claim.device_files))
    mappings: tuple[Mapping, ...] = ()
    with suppress(NotFoundError):
        mappings = device_mappings(pid, claim.device_files)
    return Leftover(
        process=process.id,
        mappings=tuple(each for each in mappings if each in own),
        descriptors=tuple(
            (number, path)
            for number, path in device_descriptors(pid, claim.device_files)
            if any(same_file(holder, pid, number) for holder in claim.pids)
        ),
    )


def drop_leftovers(leftovers: Sequence[Leftover]) -> None:
    """Have the processes unmap and close what they inherited; they run on without it.

    Raises:
        TargetError: A process cannot be made to.
    """
    for leftover in leftovers:
        process = identity(leftover.process.pid)
        if process is not None and same(process, leftover.process):
            _drop(leftover)


def _drop(leftover: Leftover) -> None:
    pid = leftover.process.pid
    calls = tuple(_calls(leftover))
    failed = [result for result in call_inside(pid, calls) if result < 0] if calls else []
    if failed:
        reason = os.strerror(-failed[0])
        raise TargetError(f"Process {pid} cannot let go of the devices it inherited: {reason}")


def _calls(leftover: Leftover) -> Iterator[tuple[int, ...]]:
    """What there still is of it, for it may have changed since."""
    numbers = _NUMBERS[platform.machine()]
    pid = leftover.process.pid
    with suppress(NotFoundError):
        present = set(read_maps(pid))
        for mapping in leftover.mappings:
            if mapping in present:
                yield numbers.munmap, mapping.start, mapping.length
    for number, path in leftover.descriptors:
        with suppress(FileNotFoundError, ProcessLookupError):
            if str(Path(f"/proc/{pid}/fd/{number}").readlink()) == path:
                yield numbers.close, number
