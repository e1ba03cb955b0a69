"""Checkpoint, restore and move running GPU processes, CPU and device state together.

::

    import gpusnap

    snapshot = gpusnap.create_checkpoint(pid, "snapshots/epoch_10.ckpt")
    gpusnap.restore_checkpoint(snapshot.path)

Every name below is imported when it is first used: driver workers and simulated programs
import parts of this package and must start quickly.
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusnap.checkpoint import create_checkpoint
    from gpusnap.checks import devices, preflight, processes
    from gpusnap.plan import CheckpointOptions, CheckpointPlan, plan_checkpoint
    from gpusnap.recovery import Recovered, recover
    from gpusnap.repository import Repository, Snapshot
    from gpusnap.restore import RestoredTarget, RestorePlan, plan_restore, restore_checkpoint
    from gpusnap.suspension import Resumed, Suspended, resume, suspend

__all__ = [
    "CheckpointOptions",
    "CheckpointPlan",
    "Recovered",
    "Repository",
    "RestorePlan",
    "RestoredTarget",
    "Resumed",
    "Snapshot",
    "Suspended",
    "__version__",
    "create_checkpoint",
    "devices",
    "plan_checkpoint",
    "plan_restore",
    "preflight",
    "processes",
    "recover",
    "restore_checkpoint",
    "resume",
    "suspend",
]

__version__: str

_MODULES = ("checkpoint", "checks", "plan", "recovery", "repository", "restore", "suspension")


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("gpusnap")
    if name in __all__:
        for module in _MODULES:
            found = getattr(importlib.import_module(f"gpusnap.{module}"), name, None)
            if found is not None:
                return found
    msg = f"module 'gpusnap' has no attribute '{name}'"
    raise AttributeError(msg)
