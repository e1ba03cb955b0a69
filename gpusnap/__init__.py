"""Checkpoint, restore and move running GPU processes, CPU and device state together.

::

    import gpusnap

    snapshot = gpusnap.create_checkpoint(pid, "snapshots/epoch_10.ckpt")
    gpusnap.restore_checkpoint(snapshot.path)

Every name below is imported when it is first used: driver workers and simulated programs
import parts of this package and must start quickly.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusnap.checkpoint import create_checkpoint
    from gpusnap.checks import devices, preflight, processes
    from gpusnap.inprocess.aside import step_aside
    from gpusnap.inprocess.callbacks import after_checkpoint, after_restore, before_checkpoint
    from gpusnap.inprocess.itself import Checkpointed, checkpoint_self
    from gpusnap.inprocess.steps import step
    from gpusnap.jobs.branching import Branch, Branched, branch
    from gpusnap.jobs.preempt import Preempted, preempt
    from gpusnap.jobs.replaying import Replayed, ReplayedRun, replay
    from gpusnap.plan import CheckpointOptions, CheckpointPlan, plan_checkpoint
    from gpusnap.recovery import Recovered, recover
    from gpusnap.repository import Repository, Snapshot
    from gpusnap.restore import RestoredTarget, RestorePlan, plan_restore, restore_checkpoint
    from gpusnap.suspension import Resumed, Suspended, resume, suspend

__all__ = [
    "Branch",
    "Branched",
    "CheckpointOptions",
    "CheckpointPlan",
    "Checkpointed",
    "Preempted",
    "Recovered",
    "Replayed",
    "ReplayedRun",
    "Repository",
    "RestorePlan",
    "RestoredTarget",
    "Resumed",
    "Snapshot",
    "Suspended",
    "__version__",
    "after_checkpoint",
    "after_restore",
    "before_checkpoint",
    "branch",
    "checkpoint_self",
    "create_checkpoint",
    "devices",
    "plan_checkpoint",
    "plan_restore",
    "preempt",
    "preflight",
    "processes",
    "recover",
    "replay",
    "restore_checkpoint",
    "resume",
    "step",
    "step_aside",
    "suspend",
]

__version__: str

_MODULES = (
    "inprocess.steps",  # those that load little come first
    "inprocess.callbacks",
    "inprocess.aside",
    "inprocess.itself",
    "checkpoint",
    "checks",
    "plan",
    "recovery",
    "repository",
    "restore",
    "suspension",
    "jobs.branching",
    "jobs.preempt",
    "jobs.replaying",
)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - takes longer than all else here

        return version("gpusnap")
    if name in __all__:
        for module in _MODULES:
            found = getattr(importlib.import_module(f"gpusnap.{module}"), name, None)
            if found is not None:
                globals()[name] = found  # step() is called often
                return found
    msg = f"module 'gpusnap' has no attribute '{name}'"
    raise AttributeError(msg)
