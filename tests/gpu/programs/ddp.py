"""Deterministic training of two ranks: ``torchrun ... ddp.py LOG STEPS``; rank R logs to LOG.R."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import Linear, Sequential
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, BATCH = 2048, 4, 256
PAUSE_S = 0.08
"""After each step, so that a run lasts long enough to be interrupted often."""


def main() -> None:
    log, steps = sys.argv[1], int(sys.argv[2])
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    layers = [Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = DistributedDataParallel(Sequential(*layers).cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with Path(f"{log}.{rank}").open("a", buffering=1) as file:
        for step in range(steps):
            generator = torch.Generator().manual_seed(step * 2 + rank)
            batch = torch.randn(BATCH, WIDTH, generator=generator).cuda()
            loss = (model(batch) - batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            file.write(f"{step} {loss.item():.9f}\n")
            time.sleep(PAUSE_S)
        file.write("done\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
