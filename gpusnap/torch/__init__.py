"""Whole-process snapshots in a PyTorch training script.

::

    from gpusnap.torch import CheckpointWrapper

    wrapper = CheckpointWrapper(model, optimizer, checkpoint_dir="snapshots")
    if wrapper.epochs():
        wrapper.load()  # the saved process goes on in place of this one
    for epoch in range(epochs):
        train(epoch)
        wrapper.save(epoch)
"""

from gpusnap.checkpoint import create_checkpoint
from gpusnap.restore import restore_checkpoint
from gpusnap.torch.optimizer import optimizer_memory
from gpusnap.torch.wrapper import CheckpointWrapper

__all__ = ["CheckpointWrapper", "create_checkpoint", "optimizer_memory", "restore_checkpoint"]
