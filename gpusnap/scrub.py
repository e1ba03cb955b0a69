"""Forked children that inherited devices: what they hold of them is taken away.

A process that uses a device and forks leaves its children mappings and descriptors of the
device's files that are of no use to them: a driver's state does not survive a fork. The data
loaders of training programs are such children. CRIU can save none of that, and refuses the whole
tree. So it is unmapped and closed in the children, once the device's state has been saved.
"""

import os
import platform
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from gpusnap.errors import NotFoundError, PrivilegeError, TargetError
from gpusnap.native import call_inside, same_file, share, vdso_of
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
        vdso: Where the kernel's own code lies in its memory, which tells one program that it
            runs from the next.
        mappings: Mappings of the device's files.
        descriptors: Descriptors of them, by number, with the path of each.
    """

    process: ProcessId
    vdso: tuple[int, int] | None
    mappings: tuple[Mapping, ...]
    descriptors: tuple[tuple[int, str], ...]


def find_leftovers(target: Target, claim: Claim) -> tuple[Leftover, ...]:
    """What the processes without device state inherited from those with.

    A descriptor that such a process opened itself, for NVML say, is none: it may be in use. Nor
    has a child of vfork inherited anything: until it runs a program, its memory is its parent's.
    Of processes that the caller may not look into nothing is found.

    Args:
        target: The tree, of which the claimed processes still hold their device.
        claim: Who holds one, and which files are the device's.
    """
    if platform.machine() not in _NUMBERS or not claim.device_files:
        return ()
    own = {each for pid in claim.pids for each in device_mappings(pid, claim.device_files)}
    found = (
        _inherited(process, claim, own)
        for process in target.processes
        if process.pid not in claim.pids and not any(share(process.pid, pid) for pid in claim.pids)
    )
    return tuple(each for each in found if each is not None)


def device_mappings(pid: int, prefixes: Sequence[str]) -> tuple[Mapping, ...]:
    """Mappings of files whose path begins in one of several ways; none where none can be seen."""
    with suppress(NotFoundError, PrivilegeError):
        return tuple(each for each in read_maps(pid) if each.path.startswith(tuple(prefixes)))
    return ()


def device_descriptors(pid: int, prefixes: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Descriptors of files whose path begins in one of several ways, with that path."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                path = str(link.readlink())
                if path.startswith(tuple(prefixes)):
                    found.append((int(link.name), path))
    return tuple(sorted(found))


def _inherited(process: Process, claim: Claim, own: Container[Mapping]) -> Leftover | None:
    pid = process.pid
    mappings = tuple(each for each in device_mappings(pid, claim.device_files) if each in own)
    descriptors = tuple(
        (number, path)
        for number, path in device_descriptors(pid, claim.device_files)
        if any(same_file(holder, pid, number) for holder in claim.pids)
    )
    if not mappings and not descriptors:
        return None
    with suppress(ProcessLookupError):
        return Leftover(
            process=process.id, vdso=vdso_of(pid), mappings=mappings, descriptors=descriptors
        )
    return None


def drop_leftovers(leftovers: Sequence[Leftover]) -> None:
    """Have the processes unmap and close what they inherited; they run on without it.

    One that has ended since, or runs another program, holds nothing of it any more.

    Raises:
        TargetError: A process cannot be made to.
    """
    for leftover in leftovers:
        if _still_there(leftover):
            try:
                _drop(leftover)
            except TargetError:
                if _still_there(leftover):
                    raise


def _still_there(leftover: Leftover) -> bool:
    process = identity(leftover.process.pid)
    try:
        return (
            process is not None
            and same(process, leftover.process)
            and vdso_of(process.pid) == leftover.vdso
        )
    except ProcessLookupError:
        return False


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
