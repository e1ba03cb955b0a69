"""Trains a small model and saves the whole process after every epoch: ``train.py [EPOCH]``.

With an epoch it goes on after that one, in place of a new process::

    python train.py >> train.log
    python train.py 0 >> train.log
"""

import sys

import torch
from torch import nn

from gpusnap.torch import CheckpointWrapper

EPOCHS = 2
SAMPLES, FEATURES, BATCH = 256, 16, 32


def make_data() -> torch.utils.data.TensorDataset:
    """Points, each with the sine of the sum of its numbers."""
    points = torch.randn(SAMPLES, FEATURES)
    return torch.utils.data.TensorDataset(points, points.sum(1, keepdim=True).sin())


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: "torch.utils.data.DataLoader[tuple[torch.Tensor, ...]]",
    device: str,
) -> float:
    """Train for one epoch; gives the mean loss."""
    losses = []
    for points, wanted in batches:
        loss = nn.functional.mse_loss(model(points.to(device)), wanted.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(sum(losses)) / len(losses)


def main() -> None:
    """Train, or go on where a snapshot is."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters())
    batches = torch.utils.data.DataLoader(make_data(), batch_size=BATCH, shuffle=True)

    wrapper = CheckpointWrapper(model, optimizer, checkpoint_dir="snapshots")
    if len(sys.argv) > 1:
        wrapper.load(int(sys.argv[1]))

    for epoch in range(EPOCHS):
        loss = train(model, optimizer, batches, device)
        print(f"epoch {epoch}: loss {loss:.9f}", flush=True)
        wrapper.save(epoch)


if __name__ == "__main__":
    main()
