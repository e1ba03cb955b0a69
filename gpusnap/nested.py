"""Targets in a PID namespace that a restore with new PIDs made: CRIU has to work inside."""

import contextlib
import os
from collections.abc import Iterator

import msgspec

from gpusnap.criu import NAMESPACE_INIT, Entrance
from gpusnap.errors import NotFoundError
from gpusnap.pids import SAME, PidMap, map_of
from gpusnap.repository import Manifest
from gpusnap.target import identity, pid_namespace, read_process
from gpusnap.types import DeviceImage, Engine, Finding, Process, ProcessId, Severity, Target


def is_nested(pid: int) -> bool:
    """Whether a process is in another PID namespace than gpusnap."""
    return pid_namespace(pid) not in {None, pid_namespace(os.getpid())}


def init_of(pid: int) -> ProcessId | None:
    """The first process of the namespace that a process lives in; None where gpusnap does too."""
    return identity(map_of(pid).translate(1)) if is_nested(pid) else None


def outside_map(pid: int) -> PidMap:
    """From the PIDs of a process's namespace to those here."""
    return map_of(pid) if is_nested(pid) else SAME


@contextlib.contextmanager
def entrance(pid: int) -> Iterator[Entrance | None]:
    """The way for CRIU to where a process lives; None where gpusnap lives there too."""
    if not is_nested(pid):
        yield None
        return
    with Entrance(pid) as found:
        yield found


def entering(pid: int, command: tuple[str, ...]) -> tuple[str, ...]:
    """What a person would type to run a command where a process lives."""
    if not is_nested(pid):
        return command
    return ("nsenter", "--target", str(pid), "--pid", "--mount", *command)


def check_engine(target: Target, engine: Engine) -> Iterator[Finding]:
    """Refuse CRIU's own plugin for a target in another PID namespace."""
    if engine is Engine.CRIU_PLUGIN and is_nested(target.root.pid):
        yield plugin_cannot(cure="Use --engine driver")


def check_namespace(target: Target) -> Iterator[Finding]:
    """Refuse a target in a PID namespace that gpusnap did not make, a container's for example."""
    root = target.root
    if is_nested(root.pid) and not in_namespace_of_its_own(root.pid):
        yield Finding(
            code="pid-namespace",
            severity=Severity.ERROR,
            text=f"Process {root.pid} ({root.name}) is in another PID namespace than gpusnap, "
            "as in a container",
            cure="Run gpusnap in that container, with the capabilities that gpusnap check names",
            pid=root.pid,
        )


def plugin_cannot(*, cure: str) -> Finding:
    """The finding for CRIU's own plugin where PIDs inside are others than outside."""
    return Finding(
        code="new-pids-engine",
        severity=Severity.ERROR,
        text="CRIU's plugin would name processes to the driver by PIDs that only they see",
        cure=cure,
    )


def in_namespace_of_its_own(pid: int) -> bool:
    """Whether a process is in a PID namespace that a restore has made, also if so is gpusnap."""
    try:
        return read_process(map_of(pid).translate(1)).name == NAMESPACE_INIT
    except NotFoundError:
        return False


def as_inside(manifest: Manifest, outside: PidMap) -> Manifest:
    """A manifest by the PIDs that the target sees itself, which a restore gives back.

    Args:
        manifest: By those that gpusnap sees.
        outside: From the first to the second.
    """
    if outside.pairs is None:
        return manifest
    pids = outside.inverse
    processes = tuple(_process(each, pids) for each in manifest.target.processes)
    image = manifest.device_regions
    return msgspec.structs.replace(
        manifest,
        target=Target(processes=processes),
        claimed=pids.translate_all(manifest.claimed),
        device_regions=None if image is None else _image(image, pids),
    )


def _process(process: Process, pids: PidMap) -> Process:
    return msgspec.structs.replace(
        process,
        id=ProcessId(pids.translate(process.pid), process.id.start_ticks),
        parent_pid=pids.get(process.parent_pid),
        session_id=pids.get(process.session_id),
    )


def _image(image: DeviceImage, pids: PidMap) -> DeviceImage:
    renamed = msgspec.structs.replace
    return DeviceImage(
        regions=tuple(renamed(each, pid=pids.translate(each.pid)) for each in image.regions),
        uses=tuple(renamed(each, pid=pids.translate(each.pid)) for each in image.uses),
    )
