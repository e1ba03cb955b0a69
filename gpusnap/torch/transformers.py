"""A callback for the Trainer of Hugging Face that saves the whole process after epochs."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gpusnap.torch.wrapper import CheckpointWrapper


class SnapshotCallback(TrainerCallback):  # type: ignore[misc]
    """Saves after every N-th epoch, counted from 0.

    A process brought back goes on inside ``Trainer.train``.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path,
        *,
        every_epochs: int = 1,
        **options: Any,  # noqa: ANN401 - they are the wrapper's to check
    ) -> None:
        """Remember where, how often and how to save.

        Args:
            checkpoint_dir: Where the snapshots go, as ``epoch_N.ckpt``.
            every_epochs: Save after so many epochs.
            options: As for :class:`~gpusnap.torch.CheckpointWrapper`.
        """
        self._every = every_epochs
        self._wrapper = partial(CheckpointWrapper, checkpoint_dir=checkpoint_dir, **options)

    def on_epoch_end(
        self,
        args: TrainingArguments,  # noqa: ARG002 - the signature is the Trainer's
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002 - same
        **parts: Any,  # noqa: ANN401 - same
    ) -> None:
        """Save."""
        done = round(state.epoch)
        if done % self._every == 0:
            wrapper = self._wrapper(model=parts["model"], optimizer=parts["optimizer"])
            wrapper.save(done - 1)
