"""The manifest: what a snapshot is of, how it was made, and the sums of its files."""

import hashlib
import posixpath
import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from gpusnap.errors import IncompatibleError, IntegrityError
from gpusnap.events import Phase
from gpusnap.mailbox import Mailbox
from gpusnap.repository.digest import FileDigest
from gpusnap.repository.layout import FORMAT_VERSION, MANIFEST, WITH_PARTS
from gpusnap.repository.names import problem
from gpusnap.repository.storage import printable
from gpusnap.repository.tags import tag_problem
from gpusnap.types import Device, DeviceImage, Engine, Finding, SavedMemory, Target

MANIFEST_LIMIT = 64 << 20
"""Bytes of the longest manifest that is read."""
PID_LIMIT = 1 << 22
"""The kernel's bound: every PID is below it."""

_LINK_FILE = re.compile(r"gpusnap-link-[0-9]+")
_LINK_NAME = re.compile(r"link_remap\.[0-9]+")

_Count = Annotated[int, Meta(ge=0)]
_T = TypeVar("_T")


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the programs of a checkpoint; what is not known is None.

    Attributes:
        kernel: Release, as ``uname -r`` says it.
        machine: Instruction set, as ``uname -m`` says it.
        boot_id: Tells one boot from another, so that PIDs can be compared.
    """

    kernel: str
    machine: str
    hostname: str
    boot_id: str
    libc: str | None = None
    criu_version: str | None = None
    python_version: str | None = None


class SavedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the dump that its restore has to repeat; CRIU's own words."""

    shell_job: bool = False
    tcp_established: bool = False
    file_locks: bool = False
    link_remap: bool = False
    ext_unix_sockets: bool = False
    ghost_limit: _Count | None = None


class SavedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A file in use that had another name alone; see :mod:`gpusnap.links`.

    Attributes:
        file: Its copy among the images.
        made: The names that CRIU gave it and looks for.
        names: The others that it had in the same folder.
        mode: Its permissions.
    """

    file: str
    made: Annotated[tuple[str, ...], Meta(min_length=1)]
    names: tuple[str, ...] = ()
    mode: Annotated[int, Meta(ge=0, le=0o7777)]
    user: _Count
    group: _Count

    def __post_init__(self) -> None:
        """Refuse what would lead out of the images, or to files that CRIU does not make."""
        if not _LINK_FILE.fullmatch(self.file):
            raise ValueError(f"{self.file!r} is no copy of a linked file")
        folders = {posixpath.dirname(path) for path in (*self.made, *self.names)}
        named = all(_LINK_NAME.fullmatch(posixpath.basename(path)) for path in self.made)
        folder = folders.pop()
        plain = folder.startswith("/") and posixpath.normpath(folder) == folder
        if folders or not named or not plain:
            raise ValueError(f"{self.made[0]!r} is no name that CRIU gives a file")


class PhaseTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long one step of the checkpoint took."""

    phase: Phase
    microseconds: _Count


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a snapshot besides its images.

    Attributes:
        format_version: Version of the format; see :func:`version_for`.
        id: Tells this snapshot from every other, also of the same name.
        name: The name it was made under; its folder may have been renamed since.
        created: Instant in UTC, RFC 3339; see :func:`timestamp`.
        backend: The backend that handled the device, None for a target without device state.
        claimed: PIDs with device state.
        device_regions: Where in the memory images the device memory is.
        memory: What was saved past CRIU, None where all is in CRIU's images.
        devices: All devices of the host in the driver's order.
        links: Files in use that had another name alone.
        left_running: Whether the target ran on afterwards.
        frozen_us: How long the target had not run when the manifest was written.
        parent: Id of the snapshot this one builds on.
        tags: Words that the user gave it.
        mailbox: Where the process that asked for the checkpoint waits for the answer of a
            restore, if it was one of the target.
        files: Every file of the snapshot but the manifest and its digest.
        findings: What checks found that did not stop the checkpoint.
    """

    format_version: Annotated[int, Meta(ge=1)] = FORMAT_VERSION
    id: Annotated[str, Meta(min_length=1)]
    name: str
    created: str
    gpusnap_version: str
    target: Target
    host: Host
    files: tuple[FileDigest, ...]
    backend: str | None = None
    claimed: tuple[int, ...] = ()
    device_regions: DeviceImage | None = None
    memory: SavedMemory | None = None
    devices: tuple[Device, ...] = ()
    driver_version: str | None = None
    engine: Engine = Engine.DRIVER
    options: SavedOptions = SavedOptions()
    links: tuple[SavedLink, ...] = ()
    left_running: bool = True
    frozen_us: _Count = 0
    phases: tuple[PhaseTime, ...] = ()
    parent: str | None = None
    tags: tuple[str, ...] = ()
    mailbox: Mailbox | None = None
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no gpusnap writes."""
        words = problem(self.name)
        if words:
            raise ValueError(f"the name {words}")
        if datetime.fromisoformat(self.created).utcoffset() != timedelta(0):
            raise ValueError(f"{self.created!r} is not in UTC")
        if len({file.path for file in self.files}) < len(self.files):
            raise ValueError("a file is named twice")
        if self.format_version < version_for(self.files):
            raise ValueError(f"version {self.format_version} knows no sums in parts")
        if words := next(filter(None, map(tag_problem, self.tags)), None):
            raise ValueError(f"a tag {words}")
        self._check_pids()

    def _check_pids(self) -> None:
        if not self.target.processes:
            raise ValueError("the target has no process")
        for pid in self.target.pids:
            if not 0 < pid < PID_LIMIT:
                raise ValueError(f"no process can have PID {pid}")
        if self.mailbox is not None and self.mailbox.pid not in self.target.pids:
            raise ValueError(f"process {self.mailbox.pid} waits but is no part of the target")
        for pid in self.claimed:
            if pid not in self.target.pids:
                raise ValueError(f"process {pid} is claimed but no part of the target")

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class _Version(msgspec.Struct):
    format_version: Annotated[int, Meta(ge=1)]


def version_for(files: Iterable[FileDigest]) -> int:
    """The version of the format that a manifest with such files needs."""
    return WITH_PARTS if any(file.in_parts for file in files) else FORMAT_VERSION


def new_id() -> str:
    """An identifier that no other snapshot or repository has."""
    return uuid.uuid4().hex


def timestamp(now: datetime | None = None) -> str:
    """An instant, by default this one, as manifests hold it."""
    instant = now or datetime.now(UTC)
    return f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def decode_versioned(data: bytes, kind: type[_T], path: Path, newest: int) -> _T:
    """Read JSON that carries a format version, ``newest`` at most.

    Raises:
        IncompatibleError: A newer gpusnap wrote it.
        IntegrityError: It is not what any gpusnap writes.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).format_version
        if version > newest:
            raise IncompatibleError(
                f"{printable(path)} has format version {version}, newer than {newest}",
                cure="Use the gpusnap that wrote it, or a newer one",
            )
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(f"{printable(path)} is damaged: {error}") from error


def decode(data: bytes, path: Path) -> Manifest:
    """Read a manifest; errors as :func:`decode_versioned`."""
    return decode_versioned(data, Manifest, path, WITH_PARTS)


def encodable(value: object) -> object:
    """The same with every text fit for UTF-8: a command line may hold any bytes."""
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {encodable(key): encodable(each) for key, each in value.items()}
        case list() | tuple():
            return [encodable(each) for each in value]
    return value


def encode(manifest: Manifest) -> bytes:
    """A manifest as indented JSON."""
    plain = encodable(msgspec.to_builtins(manifest))
    return msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"


def digest_line(data: bytes) -> bytes:
    """The content of ``manifest.json.sha256``: what ``sha256sum manifest.json`` prints."""
    return f"{hashlib.sha256(data).hexdigest()}  {MANIFEST}\n".encode()
