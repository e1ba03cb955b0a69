"""Open files that CRIU cannot save."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from gpusnap.findings.process import own_namespace
from gpusnap.findings.terminals import is_terminal
from gpusnap.findings.view import Descriptor, Seen, View
from gpusnap.scrub import Leftover
from gpusnap.types import Finding, Severity

IO_URING = "anon_inode:[io_uring]"
_SAVED_ANONYMOUS = ("eventfd", "eventpoll", "inotify", "fanotify", "signalfd", "timerfd", "pidfd")
_NO_DRIVERS = ("perf_event", "bpf-map", "bpf-prog")
_ANONYMOUS = re.compile(r"anon_inode:\[?(?P<kind>[^\]]*)\]?")
_RING_LIBRARIES = re.compile(r"(?:liburing|libuv|libtorch_cpu|libnode)[^/]*$")
_DEVICE = re.compile(r"sdev:([0-9a-f]+)")
_MEMORY, _MISCELLANEOUS = 1, 10  # MEM_MAJOR, MISC_MAJOR
_AUTOFS, _TUN = 235, 200  # minors; the latter is saved with a network namespace alone
_DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def check_descriptors(view: View, leftovers: Sequence[Leftover] = ()) -> Iterator[Finding]:
    """Find open files that make a dump fail.

    Args:
        view: The tree.
        leftovers: What forked children inherited of devices, which is taken from them.
    """
    inherited = {each.process.pid: each for each in leftovers}
    for each in view.seen:
        seen = _without(each, inherited.get(each.pid))
        yield from _ring(seen)
        yield from _anonymous(seen, claimed=seen.pid in view.claimed)
        yield from _pidfds(seen, view)
        yield from _watches(seen)
        yield from _devices(seen)
        if seen.pid not in view.claimed:
            yield from _unclaimed(seen)


def _without(seen: Seen, inherited: Leftover | None) -> Seen:
    """The process as it will be once what it inherited is taken from it."""
    if inherited is None:
        return seen
    numbers = dict(inherited.descriptors)
    return msgspec.structs.replace(
        seen,
        descriptors=tuple(each for each in seen.descriptors if each.number not in numbers),
        maps=tuple(each for each in seen.maps if each not in inherited.mappings),
    )


def _ring(seen: Seen) -> Iterator[Finding]:
    mapped = {mapping.path for mapping in seen.maps}
    if IO_URING not in mapped and not any(seen.linked(IO_URING)):
        return
    libraries = sorted(path.rpartition("/")[2] for path in mapped if _RING_LIBRARIES.search(path))
    by = f", probably through {libraries[0]}," if libraries else ""
    yield Finding(
        code="io-uring",
        severity=Severity.ERROR,
        text=f"{seen.label} uses io_uring{by} which CRIU cannot save",
        cure="Set sysctl kernel.io_uring_disabled=2 before it starts, so that it does without",
        pid=seen.pid,
    )


def _anonymous(seen: Seen, *, claimed: bool) -> Iterator[Finding]:
    """Files without a path; a driver's own in a claimed process go when its device is saved."""
    for each in seen.linked("anon_inode:"):
        found = _ANONYMOUS.fullmatch(each.link)
        kind = found["kind"] if found else each.link
        if kind in _SAVED_ANONYMOUS or each.link == IO_URING:
            continue
        if not claimed or kind in _NO_DRIVERS:
            yield _unsaved(seen, each, kind)


def _unsaved(seen: Seen, descriptor: Descriptor, kind: str) -> Finding:
    return Finding(
        code="descriptor-kind",
        severity=Severity.ERROR,
        text=f"{seen.label} has a file of kind {kind} open as descriptor {descriptor.number}, "
        "which CRIU cannot save",
        cure="Let it close that file before the checkpoint",
        pid=seen.pid,
    )


def _pidfds(seen: Seen, view: View) -> Iterator[Finding]:
    pidfds = (*seen.linked("anon_inode:[pidfd]"), *seen.linked("pidfd:["))
    for each in pidfds:
        of = int(dict(each.info()).get("Pid", "-1"))
        if of > 0 and of not in view.target.pids:
            yield Finding(
                code="pidfd-outside",
                severity=Severity.ERROR,
                text=f"{seen.label} holds process {of} by the pidfd at descriptor {each.number}, "
                "and that process is outside of the tree",
                cure="Checkpoint from that process on, or let this one close the pidfd",
                pid=seen.pid,
            )


def _watches(seen: Seen) -> Iterator[Finding]:
    """Watches on /proc, whose files CRIU cannot find again; others are saved."""
    process_files = os.minor(Path("/proc").stat().st_dev)
    for each in seen.linked("anon_inode:inotify"):
        watched = [value for name, value in each.info() if name == "inotify wd"]
        if any(
            int(found[1], 16) == process_files for found in map(_DEVICE.search, watched) if found
        ):
            yield Finding(
                code="watch-proc",
                severity=Severity.ERROR,
                text=f"{seen.label} watches a file of /proc by inotify at descriptor "
                f"{each.number}, which CRIU cannot find again",
                cure="Let it close that watch before the checkpoint",
                pid=seen.pid,
            )


def _devices(seen: Seen) -> Iterator[Finding]:
    """Device files by name, but for those that a backend knows."""
    unknown: dict[str, int] = {}
    own_network = seen.process.namespaces.get("net") != own_namespace("net")
    for each, device in seen.character_devices:
        if not _is_saved(device, own_network=own_network) and not each.link.startswith(
            _DEVICE_FILES
        ):
            unknown.setdefault(each.link, each.number)
    for each in seen.linked("/dev/"):
        found = each.stat()
        if found is not None and stat.S_ISBLK(found.st_mode):
            unknown.setdefault(each.link, each.number)
    for path, number in unknown.items():
        yield Finding(
            code="device-file",
            severity=Severity.ERROR,
            text=f"{seen.label} has {path} open as descriptor {number}, a device that CRIU "
            "cannot save",
            cure=_device_cure(path),
            pid=seen.pid,
        )


def _is_saved(device: int, *, own_network: bool) -> bool:
    major, minor = os.major(device), os.minor(device)
    if major == _MISCELLANEOUS:
        return minor == _AUTOFS or (minor == _TUN and own_network)
    return major == _MEMORY or is_terminal(device)


def _device_cure(path: str) -> str:
    if path == "/dev/gdrdrv":
        return "Start it without GDRCopy: NCCL_GDRCOPY_ENABLE=0 where NCCL uses it"
    if path.startswith("/dev/infiniband/"):
        return "Start it without InfiniBand: NCCL_IB_DISABLE=1 where NCCL uses it"
    return "Let it close that device before the checkpoint"


def _unclaimed(seen: Seen) -> Iterator[Finding]:
    mapped = [each.path for each in seen.maps]
    opened = [each.link for each in seen.descriptors]
    devices = sorted({path for path in (*mapped, *opened) if path.startswith(_DEVICE_FILES)})
    if devices:
        yield Finding(
            code="device-unclaimed",
            severity=Severity.ERROR,
            text=f"{seen.label} {'maps' if devices[0] in mapped else 'has'} {devices[0]}"
            f"{'' if devices[0] in mapped else ' open'}, but no usable backend claims its "
            "device state",
            cure="See gpusnap backends; a program that only watches the devices has to close "
            "them, and a forked worker process may have to end first",
            pid=seen.pid,
        )
