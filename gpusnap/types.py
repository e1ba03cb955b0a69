"""The structs that travel between the host, the backends and the callers.

All are frozen and compare by value. Sizes are bytes, durations are microseconds,
instants are UTC; a value that a driver does not report is None, never a guess.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec

BACKEND_API_VERSION = 1
"""Version of the backend interface in :mod:`gpusnap.hookspecs`."""


class DeviceState(StrEnum):
    """State of one process in its device driver (the words of CUDA's checkpoint API)."""

    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"
    CHECKPOINTING = "checkpointing"
    RESTORING = "restoring"


class Capability(StrEnum):
    """What a backend can do; the host never calls a hook whose capability is missing."""

    CHECKPOINT = "checkpoint"
    """lock, checkpoint, restore and unlock work outside CRIU."""
    SUSPEND = "suspend"
    """A process may stay checkpointed in host memory while it lives."""
    REMAP = "remap"
    """A process may come back on devices other than the saved ones."""
    CRIU_PLUGIN = "criu-plugin"
    """CRIU can drive the device itself through a plugin (see ``criu_options``)."""


class Operation(StrEnum):
    """What a preflight is asked about."""

    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    SUSPEND = "suspend"
    RESUME = "resume"


class Severity(StrEnum):
    """Weight of a finding: an error refuses the operation."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Engine(StrEnum):
    """Who drives the device around CRIU's dump and restore."""

    DRIVER = "driver"
    """gpusnap, through the backend, outside CRIU (the default)."""
    CRIU_PLUGIN = "criu-plugin"
    """CRIU's own vendor plugin."""


class CriuPhase(StrEnum):
    """The CRIU command for which a backend is asked for options."""

    DUMP = "dump"
    RESTORE = "restore"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a check saw.

    Attributes:
        code: Stable identifier, lower case with hyphens, documented in
            docs/how-to/troubleshooting.
        severity: Whether it refuses the operation.
        text: One sentence, no full stop needed by the printer.
        cure: What the user can do about it, or None where nothing helps.
        pid: The process it is about, if it is about one.
    """

    code: str
    severity: Severity
    text: str
    cure: str | None = None
    pid: int | None = None


class Lack(msgspec.Struct, frozen=True, kw_only=True):
    """Why a backend does not offer a capability, and what the user can do instead."""

    reason: str
    cure: str | None = None


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend says of itself without touching its driver."""

    name: str
    vendor: str
    capabilities: frozenset[Capability]
    api_version: int = BACKEND_API_VERSION
    note: str | None = None
    """A sentence every listing shows, such as what has not run on hardware."""
    finding_codes: frozenset[str] = frozenset()
    """Codes of its findings that gpusnap's own page does not list."""
    lacks: dict[Capability, Lack] = {}
    """What a refusal says of capabilities that are not offered."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a backend can work on this machine, and why not."""

    usable: bool
    reasons: tuple[str, ...] = ()
    driver_version: str | None = None


class EccCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Memory error counts: volatile since the driver was loaded, aggregate for life."""

    volatile_corrected: int | None = None
    volatile_uncorrected: int | None = None
    aggregate_corrected: int | None = None
    aggregate_uncorrected: int | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a sound device from a failing one."""

    ecc_enabled: bool | None = None
    ecc: EccCounts = EccCounts()
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    bad_pages: int | None = None
    temperature_celsius: int | None = None


class DeviceLink(msgspec.Struct, frozen=True, kw_only=True):
    """A way from a device to a CPU or to another device, as the driver shows it.

    Attributes:
        kind: The bus: ``pcie`` or ``xgmi``.
        node: The node at the other end.
        device: Whether that is a device; else it is a CPU.
        mutual: Whether the other end has a link of the same kind back.
    """

    kind: str
    node: int
    device: bool
    mutual: bool


class DeviceTopology(msgspec.Struct, frozen=True, kw_only=True):
    """Where a device stands in its driver's topology, for a vendor that compares that.

    Attributes:
        node: The device's node.
        properties: What the driver says of the node, in its own words.
        links: The links to nodes that the driver shows, in its order.
    """

    node: int
    properties: dict[str, int]
    links: tuple[DeviceLink, ...] = ()


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator as its driver numbers it.

    Attributes:
        index: Position in the driver's order, from 0.
        uuid: The vendor's unique name of the device.
        pci: Bus address ``domain:bus:device.function``.
        architecture: Vendor's name of the instruction set (``sm_90``, ``gfx942``).
        partitioned: True where the device is split (MIG, CPX).
    """

    index: int
    uuid: str
    vendor: str
    model: str
    pci: str | None = None
    architecture: str | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    driver_version: str | None = None
    firmware: str | None = None
    partitioned: bool | None = None
    persistence_mode: bool | None = None
    health: Health = Health()
    topology: DeviceTopology | None = None


class DeviceProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process that holds device memory."""

    pid: int
    device_uuid: str
    memory: int | None = None
    name: str | None = None


class ProcessId(msgspec.Struct, frozen=True, order=True):
    """Identity of a process on this boot: a PID alone may be reused."""

    pid: int
    start_ticks: int
    """Start time in clock ticks since the host's boot.

    Field 22 of /proc/PID/stat, less the offset of the reader's time namespace.
    """


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a target, as it was seen once."""

    id: ProcessId
    parent_pid: int
    session_id: int
    command: tuple[str, ...]
    name: str
    executable: str | None = None
    user_id: int = 0
    threads: int = 1
    resident: int = 0
    """Resident memory in bytes."""
    namespaces: dict[str, str] = {}
    """Namespace kind to the kernel's ``kind:[inode]``."""

    @property
    def pid(self) -> int:
        """The process's number."""
        return self.id.pid


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A process tree named by its root; ``processes[0]`` is the root."""

    processes: tuple[Process, ...]

    @property
    def root(self) -> Process:
        """The process the user named."""
        return self.processes[0]

    @property
    def pids(self) -> tuple[int, ...]:
        """The PIDs of the tree, root first."""
        return tuple(process.pid for process in self.processes)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a target that a backend is responsible for; none is an answer.

    Attributes:
        pids: The processes with device state.
        reason: How that was found out.
        device_files: How the paths of the device's files begin. What forked children inherited
            of them is of no use there and keeps CRIU from saving the tree, so it is taken from
            them; empty where it must not be.
    """

    pids: tuple[int, ...]
    reason: str
    device_files: tuple[str, ...] = ()


class Region(msgspec.Struct, frozen=True, order=True):
    """A range of a process's memory, ``[start, start + length)``, in bytes."""

    pid: int
    start: int
    length: int


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """How much memory of one device a process held when it was checkpointed."""

    pid: int
    device_uuid: str
    memory: int


class DeviceImage(msgspec.Struct, frozen=True, kw_only=True):
    """What a device checkpoint left behind in the host memory of the processes."""

    regions: tuple[Region, ...]
    uses: tuple[DeviceUse, ...] = ()


class SavedBuffers(msgspec.Struct, frozen=True, kw_only=True):
    """Buffers of one kind that a vendor's own images hold of one device.

    Attributes:
        device: The device as the images name it.
        kind: The vendor's word for where the buffers lie.
        count: How many there are.
        bytes: Their sizes together.
    """

    device: str
    kind: str
    count: int
    bytes: int


class BulkImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a dump that holds device memory and next to nothing else.

    Attributes:
        name: The file's, in the folder of the images.
        parts: Lengths in bytes of its parts, one behind the other, all of the file: what stands
            in front of the memory, then each buffer. Memory that stays the same is found again
            in a later dump from the beginning of its part on.
    """

    name: str
    parts: tuple[int, ...]


class CodecUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one codec did: chunks it took, their bytes before and after."""

    codec: str
    chunks: int
    raw: int
    stored: int


class SavedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory saved past CRIU, in bytes.

    Attributes:
        raw: Memory that was there.
        zero: Of it, pages of zeros, which are not stored.
        stored: What was written of the rest into packs.
        codecs: What each codec did to what was written out of the processes.
        reused: Memory that the parent had already.
        duplicates: Memory that was there twice and is stored once.
        linked: Bytes of the packs that are files of the parent as well.
        identities: Whether the chunks have identities, so that this can be a parent.
        images: Bytes of the image files that were saved as memory is; in ``raw`` each of their
            parts counts as whole pages.
    """

    raw: int
    zero: int
    stored: int
    codecs: tuple[CodecUse, ...] = ()
    reused: int = 0
    duplicates: int = 0
    linked: int = 0
    identities: bool = False
    images: int = 0


class DeviceMap(msgspec.Struct, frozen=True, kw_only=True):
    """Saved device UUID to the UUID that replaces it, in the saved order."""

    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def identity(self) -> bool:
        """True where every device is replaced by itself."""
        return all(old == new for old, new in self.pairs)


class Incompatible(msgspec.Struct, frozen=True, kw_only=True):
    """Why saved devices do not fit the ones at hand."""

    findings: tuple[Finding, ...]


Compatibility: TypeAlias = DeviceMap | Incompatible


class LogMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """What a line that a vendor's plugin writes into CRIU's log means.

    Attributes:
        words: Regular expression for the line.
        text: One sentence.
        cure: What the user can do, or None.
        unless: Regular expression for a line that makes it void.
        aside: Whether it is told beside what made CRIU fail; else it is that.
        fatal: Whether a restore has failed even though CRIU says success.
    """

    words: str
    text: str
    cure: str | None = None
    unless: str | None = None
    aside: bool = False
    fatal: bool = False


class CriuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend needs CRIU to be given.

    Attributes:
        plugin_directory: Folder with exactly the plugins CRIU may load.
        environment: Variables added to CRIU's environment; ``PATH`` is put in front.
        inventory_plugin: Name that CRIU's inventory must hold after a dump,
            else the plugin did not take part and the dump is void.
        expected_images: Glob patterns, each of which a dump must match.
        log_meanings: What lines of the plugin in CRIU's log mean, the most telling first.
    """

    plugin_directory: str | None = None
    environment: dict[str, str] = {}
    inventory_plugin: str | None = None
    expected_images: tuple[str, ...] = ()
    log_meanings: tuple[LogMeaning, ...] = ()
