"""Processes as the kernel shows them: identity, tree, memory maps."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from gpusnap.errors import NotFoundError, PrivilegeError, TargetError
from gpusnap.types import Process, ProcessId, Region, Target

_STATE, _PARENT, _SESSION, _THREADS, _START = 0, 1, 3, 17, 19
"""Positions in /proc/PID/stat counted from the state, which follows the bracketed name."""

_LONGEST_STAT = 4096
"""More bytes than a line of /proc/PID/stat has: 52 numbers and a short name."""

_NANOSECONDS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Mapping(msgspec.Struct, frozen=True):
    """One line of /proc/PID/maps; addresses and offset in bytes."""

    start: int
    end: int
    permissions: str
    offset: int
    inode: int
    path: str

    @property
    def length(self) -> int:
        """Bytes."""
        return self.end - self.start

    @property
    def private_anonymous(self) -> bool:
        """True for memory that belongs to the process alone and to no file."""
        return self.permissions.endswith("p") and self.inode == 0 and not self.path.startswith("[")

    @property
    def executable(self) -> bool:
        """True for memory whose bytes may be run."""
        return "x" in self.permissions

    @property
    def heap(self) -> bool:
        """True for what brk(2) gave."""
        return self.path == "[heap]"


def _read_stat(pid: int) -> list[str]:
    try:
        # Read for every process of the machine: a Path and a text file take five times as long.
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(descriptor, _LONGEST_STAT)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        msg = f"No process has PID {pid}"
        raise NotFoundError(msg) from None
    # The name is in brackets and may hold blanks and brackets itself.
    return line.rpartition(b")")[2].decode().split()


def _boot_offset() -> int:
    """How far this process's time namespace moves the boot clock, in nanoseconds.

    It is read anew each time: a process that CRIU restores finds itself in another namespace.
    The kernel shows the offset from the host's clock, also in a namespace within another.
    """
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except FileNotFoundError:  # a kernel without time namespaces
        return 0
    fields = next(line.split() for line in lines if line.startswith("boottime"))
    return int(fields[1]) * 1_000_000_000 + int(fields[2])


def host_ticks(nanoseconds: int) -> int:
    """Turn a time of this process's boot clock into ticks of the host's boot clock.

    CRIU restores into a time namespace of its own, whose clock is moved. What names a process
    must read the same from inside and outside.

    Args:
        nanoseconds: As CLOCK_BOOTTIME gives them.
    """
    if nanoseconds >= 1 << 63:  # the kernel adds a negative offset without a sign
        nanoseconds -= 1 << 64
    return (nanoseconds - _boot_offset()) // _NANOSECONDS_PER_TICK


def _identity(pid: int, stat: Sequence[str]) -> ProcessId:
    # The kernel adds this reader's offset to the start, and only then rounds down to ticks.
    return ProcessId(pid, host_ticks(int(stat[_START]) * _NANOSECONDS_PER_TICK))


def identity(pid: int) -> ProcessId | None:
    """The identity of a process, or None where no process has that PID.

    Its start ticks are the host's; a reader in a time namespace may find them one tick early.
    """
    try:
        return _identity(pid, _read_stat(pid))
    except NotFoundError:
        return None


def same(first: ProcessId, second: ProcessId) -> bool:
    """True where both name one process, even if read in different time namespaces.

    An offset that is no whole number of ticks, as CRIU's are, costs a reader up to one tick.
    """
    return first.pid == second.pid and abs(first.start_ticks - second.start_ticks) <= 1


def myself() -> ProcessId:
    """Identity of this process."""
    own = identity(os.getpid())
    if own is None:
        msg = "This process does not see itself in /proc"
        raise PrivilegeError(msg, cure="Mount /proc for this PID namespace")
    return own


def is_zombie(pid: int) -> bool:
    """True for a process that has ended and was not yet reaped."""
    try:
        return _read_stat(pid)[_STATE] in "ZX"
    except NotFoundError:
        return False


def lives(pid: int) -> bool:
    """True where a process that has not ended has that PID.

    It is one look. With :func:`identity` and :func:`is_zombie` it would be two, and what is reaped
    in between would be taken for a process that runs: seen by the first, and then no zombie.
    """
    try:
        return _read_stat(pid)[_STATE] not in "ZX"
    except NotFoundError:
        return False


def alive(process: ProcessId) -> bool:
    """True where that very process still runs: same start, and no zombie."""
    try:
        stat = _read_stat(process.pid)
    except NotFoundError:
        return False
    return stat[_STATE] not in "ZX" and same(_identity(process.pid, stat), process)


def gone(process: ProcessId) -> bool:
    """True once that very process holds nothing more: only its parent may still have to reap it.

    A process that is killed may show as a zombie while some of its threads still end; these hold
    its memory, its files and its devices.
    """
    try:
        stat = _read_stat(process.pid)
    except NotFoundError:
        return True
    if not same(_identity(process.pid, stat), process):
        return True
    return stat[_STATE] in "ZX" and int(stat[_THREADS]) <= 1


def stands(process: ProcessId) -> bool:
    """True where that very process does nothing: all its threads are stopped or have ended."""
    # A thread that was begun during the first look is under the stop of the others by the second.
    return _all_stand(process) and _all_stand(process)


def _all_stand(process: ProcessId) -> bool:
    try:
        threads = os.listdir(f"/proc/{process.pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return all(map(_stands, map(int, threads))) or identity(process.pid) != process


def _stands(thread: int) -> bool:
    try:
        return _read_stat(thread)[_STATE] in "TtZX"
    except NotFoundError:
        return True


def _command(pid: int) -> tuple[str, ...]:
    raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    return tuple(part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0") if raw)


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _namespaces(pid: int) -> dict[str, str]:
    try:
        kinds = sorted(os.listdir(f"/proc/{pid}/ns"))
    except OSError:
        return {}
    links = ((kind, _link(f"/proc/{pid}/ns/{kind}")) for kind in kinds)
    return {kind: link for kind, link in links if link is not None}


def _resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def read_process(pid: int) -> Process:
    """Read one process.

    Raises:
        NotFoundError: No process has that PID.
    """
    stat = _read_stat(pid)
    try:
        return Process(
            id=_identity(pid, stat),
            parent_pid=int(stat[_PARENT]),
            session_id=int(stat[_SESSION]),
            command=_command(pid),
            name=Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n"),
            executable=_link(f"/proc/{pid}/exe"),
            user_id=Path(f"/proc/{pid}").stat().st_uid,
            threads=int(stat[_THREADS]),
            resident=_resident(pid),
            namespaces=_namespaces(pid),
        )
    except (FileNotFoundError, ProcessLookupError):
        msg = f"Process {pid} ended while it was being looked at"
        raise NotFoundError(msg) from None


def _ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = int(_read_stat(pid)[_PARENT])
    return found


def _refuse_self(pid: int) -> None:
    if pid == os.getpid():
        msg = f"Process {pid} is gpusnap itself"
        raise TargetError(msg, cure="Name the PID of the job")
    if pid in _ancestors(os.getpid()):
        msg = f"Process {pid} is an ancestor of gpusnap, which would freeze with it"
        raise TargetError(msg, cure="Run gpusnap from a shell outside that process tree")


def find_target(pid: int) -> Target:
    """Read the process tree below a PID.

    Args:
        pid: Root of the tree.

    Returns:
        The tree, root first, children in the kernel's order.

    Raises:
        NotFoundError: No process has that PID.
        TargetError: It is a zombie, a thread, gpusnap itself or an ancestor of gpusnap.
    """
    if pid <= 0:
        msg = f"{pid} is not a PID"
        raise NotFoundError(msg)
    if is_zombie(pid):
        msg = f"Process {pid} is a zombie: it has ended and waits to be reaped by its parent"
        raise TargetError(msg, cure="Nothing is left to save")
    if (whole := int(read_status(pid)["Tgid"])) != pid:  # as task managers list it
        msg = f"{pid} is a thread of process {whole}"
        raise TargetError(msg, cure=f"Give {whole}")
    root = read_process(pid)
    _refuse_self(pid)
    if root.executable is None and not root.command:
        msg = f"Process {pid} ({root.name}) is a kernel thread"
        raise TargetError(msg)
    return Target(processes=(root, *_descendants(pid)))


def _descendants(pid: int) -> tuple[Process, ...]:
    children = _children()
    found = []
    for child in _below(pid, children):
        try:
            found.append(read_process(child))
        except NotFoundError:
            continue
    return tuple(found)


def _children() -> dict[int, list[int]]:
    # Not psutil's: it leaves out children that seem older than their parent, as they do to a
    # reader whose time namespace began in between.
    found = defaultdict(list)
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            found[int(_read_stat(pid)[_PARENT])].append(pid)
        except NotFoundError:
            continue
    return found


class Kin(msgspec.Struct, frozen=True):
    """Whose child a process is and in whose session, by one look at it."""

    process: ProcessId
    parent_pid: int
    session_id: int


def kin_of(pids: Collection[int]) -> Iterator[Kin]:
    """Find the processes whose parent, or the leader of whose session, has one of some PIDs."""
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            stat = _read_stat(pid)
        except NotFoundError:
            continue
        parent, session = int(stat[_PARENT]), int(stat[_SESSION])
        if parent in pids or session in pids:
            yield Kin(_identity(pid, stat), parent, session)


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    # What is taken out is not met again: PIDs reused meanwhile may make the tree look like a ring.
    for child in children.pop(pid, ()):
        yield child
        yield from _below(child, children)


def read_status(pid: int | str) -> dict[str, str]:
    """The lines of /proc/PID/status, by name.

    Args:
        pid: A number, or ``self``.

    Raises:
        NotFoundError: No process has that PID.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        msg = f"No process has PID {pid}"
        raise NotFoundError(msg) from None
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in lines}


def pid_namespace(pid: int) -> str | None:
    """The kernel's number of a process's PID namespace; None where it is not told."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid").removeprefix("pid:[").removesuffix("]")
    except OSError:
        return None


def inside_pid(pid: int) -> int:
    """The PID of a process in its own namespace.

    Raises:
        NotFoundError: No process has that PID.
    """
    return int(read_status(pid)["NSpid"].split()[-1])


def pids_in(namespace: str) -> dict[int, int]:
    """The processes in a PID namespace: the PID of each inside, and the one here."""
    all_pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    known = {pid: pid_namespace(pid) for pid in all_pids}
    members = {pid for pid, its in known.items() if its == namespace}
    # What has ended and waits to be reaped tells no namespace; its parent is in the same one.
    ended = {pid for pid, its in known.items() if its is None and _parent(pid) in members}
    found = {}
    for pid in members | ended:
        with contextlib.suppress(NotFoundError):
            found[inside_pid(pid)] = pid
    return found


def _parent(pid: int) -> int | None:
    try:
        return int(_read_stat(pid)[_PARENT])
    except NotFoundError:
        return None


def _parse_mapping(line: str) -> Mapping:
    span, permissions, offset, _device, inode, *path = line.split(maxsplit=5)
    start, _, end = span.partition("-")
    return Mapping(
        start=int(start, 16),
        end=int(end, 16),
        permissions=permissions,
        offset=int(offset, 16),
        inode=int(inode),
        path=path[0] if path else "",
    )


def read_maps(pid: int) -> tuple[Mapping, ...]:
    """Read the memory map of a process, by rising address.

    Raises:
        NotFoundError: The process is gone.
        PrivilegeError: The kernel does not show the map.
    """
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
    except (FileNotFoundError, ProcessLookupError):
        msg = f"Process {pid} is gone"
        raise NotFoundError(msg) from None
    except PermissionError:
        msg = f"The kernel does not let gpusnap read the memory map of process {pid}"
        raise PrivilegeError(msg, cure="Run as root, or with CAP_SYS_PTRACE") from None
    return tuple(_parse_mapping(line) for line in text.splitlines())


def new_regions(
    pid: int, before: Sequence[Mapping], after: Sequence[Mapping]
) -> tuple[Region, ...]:
    """Find the memory that a device checkpoint added to a process.

    That is private anonymous writable memory in ``after`` that was no memory at all in ``before``.

    Ranges are compared, not mappings: the kernel merges a new mapping with a neighbour of the
    same kind, so that a checkpoint may only show as an old mapping that grew.

    Returns:
        Regions by rising address.
    """
    taken = [(mapping.start, mapping.end) for mapping in before]
    return tuple(
        Region(pid, start, end - start)
        for mapping in after
        if mapping.private_anonymous and mapping.permissions == "rw-p"
        for start, end in parts_outside(mapping.start, mapping.end, taken)
    )


def parts_outside(start: int, end: int, taken: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of ``[start, end)`` outside the taken ranges, which rise by address."""
    parts = []
    for low, high in taken:
        if high <= start or low >= end:
            continue
        if low > start:
            parts.append((start, low))
        start = max(start, high)
    if start < end:
        parts.append((start, end))
    return parts
