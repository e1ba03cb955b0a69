"""Counts the steps of a training loop, for ``gpusnap run --every-steps``."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from gpusnap.errors import GpusnapError

if TYPE_CHECKING:
    from gpusnap.inprocess.itself import Checkpointed

_RUN_VARIABLE = "GPUSNAP_RUN"


class _Steps:
    """The steps of this program; a program that is restored goes on counting where it was."""

    def __init__(self) -> None:
        self._done = 0
        self._every: int | None = None

    def one(self) -> "Checkpointed | None":
        if self._every is None:
            self._every = _asked()
        self._done += 1
        if not self._every or self._done % self._every:
            return None
        return _save()


def _asked() -> int:
    """Steps between snapshots; 0 for none."""
    folder = os.environ.get(_RUN_VARIABLE)
    if folder is None:
        return 0
    from gpusnap.jobs.record import read_run  # noqa: PLC0415 - only a run's job needs it

    try:
        return read_run(Path(folder)).options.every_steps or 0
    except GpusnapError as error:
        _warn(error)
        return 0


def _save() -> "Checkpointed | None":
    from gpusnap.inprocess import itself  # noqa: PLC0415 - only when it is time

    itself.check_caller()
    try:
        return itself.checkpoint_self()
    except GpusnapError as error:
        _warn(error)
        return None


def _warn(error: GpusnapError) -> None:
    # The caller of step() is four frames above this one, by either way
    warnings.warn(f"No snapshot was made: {error.text}", RuntimeWarning, stacklevel=5)


_steps = _Steps()


def step() -> "Checkpointed | None":
    """Say that a training step is done; call it once a step.

    Under ``gpusnap run --every-steps N`` each N-th call is a :func:`checkpoint_self`. Otherwise
    nothing happens.

    Returns:
        What came of the checkpoint in this program; None where there was none. A checkpoint
        that fails is a RuntimeWarning: the loop goes on. So is a run's folder that cannot be
        read.

    Raises:
        UsageError: It was called in another thread, or while a CUDA graph is captured.
    """
    return _steps.one()
