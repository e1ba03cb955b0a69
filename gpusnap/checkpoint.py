"""Saves a running process tree: the checkpoint's steps in order, and their way back.

preflight, lock, checkpoint, dump, and then, with ``--kill``, digest and publish while CRIU
holds the tasks, else restore, unlock, digest and publish. Until the snapshot is published any
failure ends with the target running as before.

:mod:`gpusnap.plan` has the preflight, :mod:`gpusnap.checkpoint_steps` all that comes after it,
with :mod:`gpusnap.dump_session` for CRIU's part and :mod:`gpusnap.memory_copy` for the memory.
"""

import os
from collections.abc import Collection
from pathlib import Path

from gpusnap.arguments import check_codes, check_pid, check_timeout
from gpusnap.checkpoint_steps import Checkpoint
from gpusnap.checks import check_space, downgrade
from gpusnap.datapath import Compression
from gpusnap.errors import UsageError, refuse
from gpusnap.events import Found, Phase
from gpusnap.inprocess.itself import Checkpointed, save_self
from gpusnap.lineage import Inheritance, inheritance
from gpusnap.phases import Phases, operation
from gpusnap.plan import (
    DEFAULT_LOCK_TIMEOUT_US,
    DEFAULT_TIMEOUT_US,
    DEFAULTS,
    CheckpointOptions,
    Prepared,
    choose_saving,
    prepare,
)
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.repository import Draft, Snapshot, check_tags, require_intact, resolve_new
from gpusnap.types import Engine, Finding, Operation, Severity


def create_checkpoint(  # noqa: PLR0913 - the public call, all by keyword
    pid: int,
    output_path: str | Path | None = None,
    *,
    repository: str | Path | None = None,
    leave_running: bool = True,
    backend: str | None = None,
    engine: str | None = None,
    timeout_us: int = DEFAULT_TIMEOUT_US,
    lock_timeout_us: int = DEFAULT_LOCK_TIMEOUT_US,
    tcp_established: bool = False,
    compress: str | bool = Compression.AUTO.value,
    parallel_workers: int | None = None,
    memory_budget: int | None = None,
    incremental: bool = False,
    parent: str | Path | None = None,
    gpu_sync: bool = False,
    thp: bool = False,
    force: Collection[str] = (),
    tags: Collection[str] = (),
    plugins: Plugins | None = None,
) -> Snapshot | Checkpointed:
    """Save a running process tree, CPU and device state together.

    Args:
        pid: Root of the process tree. A program's own PID saves the program itself, as
            :func:`gpusnap.checkpoint_self` does, with the installed plugins.
        output_path: Path or name of the snapshot; None makes up a name.
        repository: Repository folder; None for the default one.
        leave_running: Whether the target runs on afterwards; False ends it once the snapshot
            is complete.
        backend: Backend to use; None asks all.
        engine: ``driver`` or ``criu-plugin``; None for ``driver`` where the backend offers it.
        timeout_us: How long CRIU may take, in microseconds.
        lock_timeout_us: How long device work under way is waited for, in microseconds.
        tcp_established: Save established TCP connections.
        compress: How memory is compressed: ``auto``, ``none``, ``lz4`` or ``zstd``; True is
            ``auto``, False ``none``.
        parallel_workers: Threads that save memory; None for one a CPU.
        memory_budget: Bytes of host memory for what is not yet written; None for a share of
            what is free.
        incremental: Store only memory that the parent does not have, and once what is there
            twice.
        parent: Path, name or unique prefix of the snapshot to build on, which makes the new one
            incremental; None takes the newest of the same program in the same repository.
        gpu_sync: Read the snapshot back before the call returns, and compare every file with its
            checksum, memory with the CRC-32 that was taken as it left the processes. Work of the
            devices is waited for in any case; of PyTorch in the program itself, before all else.
        thp: Have the kernel use huge pages, on the whole machine, while device memory is moved
            into host memory; put back afterwards.
        force: Codes of error findings to override.
        tags: Words to list and to keep the snapshot by, without commas and spaces.
        plugins: The plugins to use; the installed ones by default.

    Returns:
        The published snapshot; of the program itself, a :class:`gpusnap.Checkpointed`.

    Raises:
        GpusnapError: Some step failed; the target runs on unless the text says otherwise.
    """
    options = CheckpointOptions(
        leave_running=leave_running,
        backend=backend,
        engine=None if engine is None else _engine(engine),
        timeout_us=check_timeout("timeout_us", timeout_us),
        lock_timeout_us=check_timeout("lock_timeout_us", lock_timeout_us),
        tcp_established=tcp_established,
        saving=choose_saving(
            compress,
            workers=parallel_workers,
            budget=memory_budget,
            incremental=incremental or parent is not None,
        ),
        parent=None if parent is None else str(parent),
        thp=thp,
        force=check_codes(force),
        tags=check_tags(tags),
    )
    if check_pid(pid) == os.getpid():
        return save_self(options, output_path, repository=repository, gpu_sync=gpu_sync)
    snapshot = run_checkpoint(
        pid, output_path, repository=repository, options=options, plugins=plugins
    )
    if gpu_sync:
        require_intact(snapshot, lambda *_: None)
    return snapshot


def _engine(name: str) -> Engine:
    try:
        return Engine(name)
    except ValueError:
        msg = f"{name!r} is no engine"
        raise UsageError(msg, cure=f"Name one of {', '.join(Engine)}") from None


def run_checkpoint(
    pid: int,
    output_path: str | Path | None = None,
    *,
    repository: str | Path | None = None,
    options: CheckpointOptions = DEFAULTS,
    plugins: Plugins | None = None,
) -> Snapshot:
    """Save a running process tree; see :func:`create_checkpoint`, here with the options struct."""
    plugins = plugins or default_plugins()
    with operation(plugins.emit, Operation.CHECKPOINT, pid=pid):
        return _prepare_and_run(pid, output_path, repository, options, plugins)


def _prepare_and_run(
    pid: int,
    output_path: str | Path | None,
    repository: str | Path | None,
    options: CheckpointOptions,
    plugins: Plugins,
) -> Snapshot:
    phases = Phases(plugins.emit)
    with phases.step(Phase.PREFLIGHT):
        prepared = prepare(pid, options, plugins)
        refuse(prepared.findings)
        prepared.require_backend()
    with resolve_new(output_path, repository, process_name=prepared.target.root.name) as draft:
        search = options.search(draft.destination.parent, repository)
        with inheritance(prepared.target, search, draft) as inherited:
            space = downgrade(_check_space(prepared, draft, inherited), options.force)
            refuse(space)
            for finding in filter(None, (*prepared.findings, *space, inherited.finding)):
                if finding.severity is Severity.WARNING:
                    plugins.emit(Found(finding=finding))
            return Checkpoint(prepared, draft, inherited, phases, plugins).run()


def _check_space(prepared: Prepared, draft: Draft, inherited: Inheritance) -> tuple[Finding, ...]:
    where = str(draft.destination.parent)
    parent = inherited.memory is not None
    found = check_space(prepared.estimate_bytes(), draft.free_bytes(), where, parent=parent)
    return tuple(found)
