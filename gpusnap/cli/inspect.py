"""``gpusnap inspect``: what is known of one snapshot."""

import shlex
from pathlib import Path

import click
import msgspec

from gpusnap.cli._format import count, duration, instant, listed, size
from gpusnap.cli._options import json_option, repo_option, snapshot_argument
from gpusnap.cli._output import Output
from gpusnap.errors import EXIT_OK
from gpusnap.repository import Manifest, SavedOptions, Snapshot, resolve


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Document of ``inspect``."""

    path: str
    bytes: int
    manifest: Manifest


@click.command()
@snapshot_argument
@repo_option
@json_option
def inspect(snapshot: str, repo: Path | None, output: Output) -> int:
    """Show what is known of a snapshot.

    That is its target, devices, host, phases and files.

    SNAPSHOT is a path with a slash, a name in the repository, the beginning of one, or
    latest.
    """
    found = resolve(snapshot, repo)
    if output.json:
        document = Inspection(path=str(found.path), bytes=found.size, manifest=found.manifest)
        output.document(document)
    else:
        _show(found, output)
    return EXIT_OK


def _show(snapshot: Snapshot, output: Output) -> None:
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
            ("files", f"{count(len(manifest.files), 'file')}, {size(snapshot.size)}"),
        ]
    )
    output.findings(manifest.findings)


def _identity(snapshot: Snapshot) -> list[tuple[str, str]]:
    manifest = snapshot.manifest
    return [
        ("snapshot", str(snapshot.path)),
        ("id", manifest.id),
        ("created", f"{instant(manifest.created)} by gpusnap {manifest.gpusnap_version}"),
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
    return [("memory", kept), *codecs]


def _host(manifest: Manifest) -> list[tuple[str, str]]:
    host = manifest.host
    return [
        ("host", f"{host.hostname}, {host.machine}, kernel {host.kernel}"),
        ("  libc", host.libc or "unknown"),
        ("  criu", host.criu_version or "unknown"),
        ("  boot", host.boot_id),
    ]
