"""``gpusnap inspect``: what is known of one snapshot."""

import shlex
from pathlib import Path

import click
import msgspec

from gpusnap.cli._format import count, duration, instant, listed, size
from gpusnap.cli._options import json_option, repo_option, snapshot_argument
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK
from gpusnap.plugins import default_plugins
from gpusnap.repository import Manifest, SavedOptions, Snapshot, resolve
from gpusnap.types import SavedBuffers, SavedMemory


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``inspect``."""

    path: str
    bytes: int
    stored_bytes: int
    manifest: Manifest
    device_buffers: tuple[SavedBuffers, ...]


@click.command()
@snapshot_argument
@repo_option
@json_option
def inspect(snapshot: str, repo: Path | None, output: Output) -> int:
    """Show what is known of a snapshot.

    That is its target, devices, host, phases and files, and the device buffers in its images.

    SNAPSHOT is a path with a slash, a name in the repository, the beginning of one, or
    latest.
    """
    found = resolve(snapshot, repo)
    buffers = _buffers(found)
    if output.json:
        document = Inspection(
            path=str(found.path),
            bytes=found.size,
            stored_bytes=found.stored_size,
            manifest=found.manifest,
            device_buffers=buffers,
        )
        output.document(document)
    else:
        _show(found, buffers, output)
    return EXIT_OK


def _buffers(snapshot: Snapshot) -> tuple[SavedBuffers, ...]:
    """Ask the backend of a snapshot, if it is here: it alone can read the vendor's images."""
    for backend in default_plugins().backends():
        if backend.name == snapshot.manifest.backend:
            return backend.describe_images(str(snapshot.images))
    return ()


def _show(snapshot: Snapshot, buffers: tuple[SavedBuffers, ...], output: Output) -> None:
    manifest = snapshot.manifest
    output.facts(
        [
            *_identity(snapshot),
            *_target(manifest),
            *_devices(manifest),
            *_host(manifest),
            ("frozen", duration(manifest.frozen_us)),
            *((f"  {each.phase.value}", duration(each.microseconds)) for each in manifest.phases),
            *_memory(manifest),
            *map(_buffer, buffers),
            ("files", f"{count(len(manifest.files), 'file')}, {size(snapshot.size)}"),
            *_own(snapshot),
        ]
    )
    output.findings(manifest.findings)


def _buffer(each: SavedBuffers) -> tuple[str, str]:
    return f"  GPU {each.device}", f"{count(each.count, f'{each.kind} buffer')}, {size(each.bytes)}"


def _own(snapshot: Snapshot) -> list[tuple[str, str]]:
    if snapshot.manifest.parent is None:
        return []
    return [("  new", f"{size(snapshot.stored_size)}; the rest are files of its parent as well")]


def _identity(snapshot: Snapshot) -> list[tuple[str, str]]:
    manifest = snapshot.manifest
    return [
        ("snapshot", str(snapshot.path)),
        ("id", manifest.id),
        *([("parent", manifest.parent)] if manifest.parent else []),
        ("created", f"{instant(manifest.created)} by gpusnap {manifest.gpusnap_version}"),
        ("tags", listed(manifest.tags)),
    ]


def _target(manifest: Manifest) -> list[tuple[str, str]]:
    target = manifest.target
    processes = [
        (f"  process {process.pid}", shlex.join(process.command) or process.name)
        for process in target.processes
    ]
    state = "ran on" if manifest.left_running else "was ended"
    size_words = count(len(target.processes), "process", "processes")
    return [
        ("target", f"{target.root.pid}, {size_words}; it {state}"),
        *processes,
        ("options", listed(_set_options(manifest.options))),
    ]


def _set_options(options: SavedOptions) -> list[str]:
    values = msgspec.structs.asdict(options).items()
    return [name.replace("_", "-") for name, value in values if value]


def _devices(manifest: Manifest) -> list[tuple[str, str]]:
    if manifest.backend is None:
        return [("backend", "none: the target held no device state")]
    driver = f", driver {manifest.driver_version}" if manifest.driver_version else ""
    return [
        ("backend", f"{manifest.backend}{driver}, for {listed(manifest.claimed)}"),
        ("engine", manifest.engine.value),
        *(
            (f"  device {each.index}", f"{each.model}, {size(each.memory_total)}, {each.uuid}")
            for each in manifest.devices
        ),
    ]


def _memory(manifest: Manifest) -> list[tuple[str, str]]:
    memory = manifest.memory
    if memory is None:
        return []
    kept = f"{size(memory.raw)}, of it {size(memory.zero)} zeros, stored in {size(memory.stored)}"
    codecs = (
        (f"  {use.codec}", f"{count(use.chunks, 'chunk')}, {size(use.raw)} to {size(use.stored)}")
        for use in memory.codecs
    )
    images = [("  images", f"{size(memory.images)} with device memory")] if memory.images else []
    return [("memory", kept), *images, *codecs, *_shared(memory)]


def _shared(memory: SavedMemory) -> list[tuple[str, str]]:
    if not memory.identities:
        return []
    return [
        ("  reused", f"{size(memory.reused)} that its parent had"),
        ("  duplicates", f"{size(memory.duplicates)} stored once though there twice"),
    ]


def _host(manifest: Manifest) -> list[tuple[str, str]]:
    host = manifest.host
    return [
        ("host", f"{host.hostname}, {host.machine}, kernel {host.kernel}"),
        ("  libc", host.libc or "unknown"),
        ("  criu", host.criu_version or "unknown"),
        ("  boot", host.boot_id),
    ]
