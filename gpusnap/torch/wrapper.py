"""``save`` and ``load`` by epoch, each of the whole process."""

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, SupportsIndex

import torch

from gpusnap.errors import NotFoundError, TargetError, UsageError
from gpusnap.handover import hand_over
from gpusnap.inprocess.itself import Checkpointed, checkpoint_self
from gpusnap.repository import open_snapshot
from gpusnap.torch.epochs import Epochs
from gpusnap.torch.optimizer import optimizer_memory


class CheckpointWrapper:
    """Saves the training process after an epoch, and puts it in place of a later one.

    A snapshot holds all of the process: model, optimizer, data loader and its workers, random
    numbers, gradient scaler, captured graphs, compiled code, the line that runs. So ``load`` does
    not fill a model; it brings the process back that called ``save``, which goes on as if nothing
    had been.

    Attributes:
        model: As given.
        optimizer: As given.
        checkpoint_dir: The folder of the snapshots, which is a repository.
    """

    def __init__(  # noqa: PLR0913 - options by keyword
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        checkpoint_dir: str | Path = "checkpoints",
        *,
        gpu_sync: bool = False,
        compress: str | bool = "auto",
        incremental: bool | None = None,
        parallel_workers: int | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        """Remember what to save and how; the folder is made by the first ``save``.

        Args:
            model: What is trained; only kept, since all of the process is saved.
            optimizer: Whose state is saved first; one, several or none.
            checkpoint_dir: Where the snapshots go, as ``epoch_N.ckpt``.
            gpu_sync: Wait for all devices before, and compare what was saved with the memory.
            compress: How memory is compressed: ``auto``, ``none``, ``lz4`` or ``zstd``; True is
                ``auto``, False ``none``.
            incremental: Store only memory that the snapshot before does not have.
            parallel_workers: Threads that save memory; None for one a CPU.
            tags: Words to list and to keep the snapshots by.
        """
        self.model = model
        self.optimizer = optimizer
        self.checkpoint_dir = Path(checkpoint_dir).absolute()
        self._epochs = Epochs(self.checkpoint_dir)
        self._gpu_sync = gpu_sync
        self._compress = compress
        self._incremental = incremental
        self._parallel_workers = parallel_workers
        self._tags = tuple(tags)

    def epochs(self) -> tuple[int, ...]:
        """The epochs that were saved, in ascending order."""
        return self._epochs.saved()

    def save(self, epoch: SupportsIndex) -> Checkpointed:
        """Save the whole process; an earlier snapshot of the same epoch is replaced.

        Args:
            epoch: The number the snapshot goes by, 0 or more.

        Returns:
            Twice: ``saved`` in the process that goes on, ``restored`` in one brought back.

        Raises:
            UsageError: That is no epoch.
            TargetError: The process is one of several that train together.
            GpusnapError: It was not saved; the training can go on.
        """
        number = _checked(epoch)
        _refuse_rank()
        place = self._epochs.place(number)
        result = checkpoint_self(
            place,
            first=optimizer_memory(*self._optimizers()),
            gpu_sync=self._gpu_sync,
            compress=self._compress,
            incremental=self._incremental,
            parallel_workers=self._parallel_workers,
            tags=self._tags,
        )
        # A restored process has come from a snapshot that is in its place
        return result if result.restored else self._epochs.settle(number, result)

    def load(
        self, epoch: SupportsIndex | None = None, *, restore_to_original_pid: bool | None = None
    ) -> NoReturn:
        """Put the process that saved an epoch in place of this one.

        It goes on with the return of its ``save``. This process becomes one that waits for it,
        passes signals on and exits with its code; nothing after the call runs here.

        Args:
            epoch: Which; None for the last one saved.
            restore_to_original_pid: Whether it must get its old PIDs; None for where these are
                free, and else a PID namespace of its own in which it has them.

        Raises:
            UsageError: That is no epoch.
            NotFoundError: It was not saved; says which were.
            TargetError: The process is one of several that train together.
            IntegrityError: The snapshot is damaged.
        """
        _refuse_rank()
        number = self._newest() if epoch is None else _checked(epoch)
        hand_over(open_snapshot(self._epochs.find(number)), original_pids=restore_to_original_pid)

    def _newest(self) -> int:
        saved = self.epochs()
        if not saved:
            raise NotFoundError(
                f"There is no snapshot of an epoch in {self.checkpoint_dir}",
                cure="Call save first, or name the folder that an earlier run saved to",
            )
        return saved[-1]

    def _optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        if self.optimizer is None:
            return ()
        return tuple(self.optimizer) if isinstance(self.optimizer, Sequence) else (self.optimizer,)


def _checked(epoch: SupportsIndex) -> int:
    try:
        number = operator.index(epoch)
    except TypeError:
        number = -1
    if number < 0:
        raise UsageError(f"{epoch!r} is no epoch", cure="Give a whole number, 0 or more")
    return number


def _refuse_rank() -> None:
    """One of several processes that talk to each other cannot be saved by itself."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    size = distributed.get_world_size()
    if size > 1:
        raise TargetError(
            f"This process is one of {size} that train together, and cannot be saved alone",
            cure="Checkpoint their launcher with gpusnap checkpoint PID, which saves all of them",
        )
