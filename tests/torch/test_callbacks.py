"""The callbacks, in the trainers that they are for."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from gpusnap.inprocess.itself import Checkpointed
from gpusnap.torch import optimizer_memory, wrapper

# Warnings of those libraries about each other are not ours
pytestmark = pytest.mark.filterwarnings("default")

EPOCHS = 4


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Names of snapshots, with how many parts of optimizer state went first."""
    saved = []

    def checkpoint_self(place: Path, **options: Any) -> Checkpointed:
        saved.append((place.name, len(options["first"])))
        return Checkpointed(outcome="saved", snapshot=place.name, path=place)

    monkeypatch.setattr(wrapper, "checkpoint_self", checkpoint_self)
    return saved


def points() -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader([torch.ones(4)] * 8, batch_size=4)


def test_lightning(saved: list[tuple[str, int]], tmp_path: Path) -> None:
    reason = "Lightning is not installed"
    lightning = pytest.importorskip("lightning.pytorch", reason=reason)
    from gpusnap.torch.lightning import SnapshotCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    callback = SnapshotCallback(tmp_path, every_epochs=2, gpu_sync=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=[callback],
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Module(), points())
    assert saved == [("epoch_1.ckpt", 6), ("epoch_3.ckpt", 6)]


def test_transformers(saved: list[tuple[str, int]], tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer is not installed")
    transformers = pytest.importorskip(
        "transformers", reason="Hugging Face's Trainer is not installed"
    )
    from gpusnap.torch.transformers import SnapshotCallback

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, points: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(points).square().mean()}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=4,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model=Model(),
        args=arguments,
        train_dataset=[{"points": torch.ones(4)}] * 8,
        callbacks=[SnapshotCallback(tmp_path, every_epochs=2)],
    )
    trainer.train()
    assert saved == [("epoch_1.ckpt", 6), ("epoch_3.ckpt", 6)]
    assert optimizer_memory(trainer.optimizer)
