"""Whether a snapshot can be restored here: host, programs, devices, room and PIDs compared."""

import platform
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpusnap.bulk_images import check_room
from gpusnap.device_map import Before, map_devices
from gpusnap.errors import NoBackendError, UsageError
from gpusnap.findings import check_privileges
from gpusnap.free_pids import WAIT_S, check_pids
from gpusnap.inprocess.answers import require_listener
from gpusnap.nested import plugin_cannot
from gpusnap.plugins import Backend, Plugins
from gpusnap.repository import Snapshot
from gpusnap.restore_options import RestoreOptions
from gpusnap.thp import check_switch
from gpusnap.trust import check_owner
from gpusnap.types import DeviceMap, Engine, Finding, Severity


class Comparison(msgspec.Struct, frozen=True):
    """What a snapshot and this machine have to do with each other.

    Attributes:
        device_map: The saved devices and those that replace them; None where an error finding
            says why there is none.
    """

    findings: tuple[Finding, ...]
    device_map: DeviceMap | None


def backend_of(snapshot: Snapshot, options: RestoreOptions, plugins: Plugins) -> Backend | None:
    """The backend that restores a snapshot; None where that has no device state.

    Raises:
        NoBackendError: It is not installed, or cannot work on this machine.
    """
    name = options.backend or snapshot.manifest.backend
    if name is None or snapshot.manifest.backend is None:
        return None
    backend = plugins.backend(name)
    probe = backend.probe()
    if not probe.usable:
        msg = f"The snapshot needs backend {name}, which cannot work here: {_why(probe.reasons)}"
        raise NoBackendError(msg, cure="Restore on a machine with such devices and their driver")
    return backend


def _why(reasons: tuple[str, ...]) -> str:
    return "; ".join(reasons) or "no reason given"


def compare(
    snapshot: Snapshot, backend: Backend | None, options: RestoreOptions, *, wait: bool
) -> Comparison:
    """Look for what would make a restore fail, changing nothing.

    Args:
        snapshot: What is to be restored.
        backend: What restores its device state, if it has some.
        options: How.
        wait: Whether processes are waited for that are dying and have PIDs of the snapshot.

    Raises:
        IncompatibleError: Nobody would read the overrides.
        NotFoundError: The user chose a device that is not there.
        UsageError: The user's choice of devices contradicts itself or the snapshot.
    """
    require_listener(snapshot, options.overrides)
    findings = [*check_privileges(), *check_owner(snapshot.path), *check_host(snapshot)]
    if snapshot.manifest.memory is not None:
        findings += check_room(snapshot.manifest.memory.images)
    if options.thp:
        findings += check_switch()
    device_map: DeviceMap | None = DeviceMap()
    if backend is not None:
        mapped = map_devices(backend, _before(snapshot), backend.devices(), options.devices)
        findings += mapped.findings
        device_map = mapped.device_map
    elif options.devices:
        msg = "The snapshot holds no device state: there is nothing to choose devices for"
        raise UsageError(msg, cure="Leave --device-map and --devices out")
    if options.new_pids:
        findings += check_new_pids(snapshot)
    else:
        findings += check_pids(snapshot.manifest.target.pids, WAIT_S if wait else 0.0)
    return Comparison(tuple(findings), device_map)


def _before(snapshot: Snapshot) -> Before:
    manifest = snapshot.manifest
    return Before(
        devices=manifest.devices,
        pids=manifest.claimed,
        engine=manifest.engine,
        uses=manifest.device_regions.uses if manifest.device_regions is not None else (),
    )


def check_host(snapshot: Snapshot) -> Iterator[Finding]:
    """Name what of the machine itself and of its programs is not as it was."""
    saved, here = snapshot.manifest.host.machine, platform.machine()
    if saved != here:
        yield Finding(
            code="host-machine",
            severity=Severity.ERROR,
            text=f"The snapshot was made on a {saved} machine, this one is {here}",
            cure=f"Restore on a {saved} machine",
        )
    for process in snapshot.manifest.target.processes:
        path = process.executable
        if path is not None and _is_missing(path):
            yield Finding(
                code="program-missing",
                severity=Severity.ERROR,
                text=f"Process {process.pid} ran {path}, which does not exist here",
                cure="Install the same program at the same path",
                pid=process.pid,
            )


def _is_missing(path: str) -> bool:
    # CRIU carries a program that had been replaced in its images; and a path that is no text
    # stands escaped in the manifest and cannot be looked up.
    if path.endswith(" (deleted)") or "\\udc" in path:
        return False
    try:
        return not Path(path).exists()
    except (OSError, ValueError):  # a path that no file can have
        return True


def check_new_pids(snapshot: Snapshot) -> Iterator[Finding]:
    """Name what does not fit into a PID namespace of its own."""
    manifest = snapshot.manifest
    if manifest.backend is not None and manifest.engine is Engine.CRIU_PLUGIN:
        yield plugin_cannot(cure="Restore without --new-pids, or checkpoint with --engine driver")
    if 1 in manifest.target.pids:
        yield Finding(
            code="new-pids-init",
            severity=Severity.ERROR,
            text="The snapshot holds a process with PID 1, which gpusnap's own needs there",
            cure="Restore without --new-pids in a container whose PID 1 is free",
            pid=1,
        )
