"""A Lightning callback that saves the whole process after epochs."""

from functools import partial
from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:
    from pytorch_lightning import Callback, LightningModule, Trainer

from gpusnap.torch.wrapper import CheckpointWrapper


class SnapshotCallback(Callback):  # type: ignore[misc]
    """Saves after every N-th training epoch, under Lightning's number of it.

    A process brought back goes on inside ``Trainer.fit``.
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
        super().__init__()
        self._every = every_epochs
        self._wrapper = partial(CheckpointWrapper, checkpoint_dir=checkpoint_dir, **options)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save."""
        if (trainer.current_epoch + 1) % self._every == 0:
            wrapper = self._wrapper(model=pl_module, optimizer=trainer.optimizers)
            wrapper.save(trainer.current_epoch)
