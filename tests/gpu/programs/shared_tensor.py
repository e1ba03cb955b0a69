"""Two processes that share a tensor on the GPU by CUDA IPC, as PyTorch does it: ``LOG``."""

import sys
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp


def add(queue: "mp.Queue[torch.Tensor]") -> None:
    tensor = queue.get()
    while True:
        tensor.add_(1)
        torch.cuda.synchronize()
        time.sleep(0.05)


def main() -> None:
    log = Path(sys.argv[1])
    context = mp.get_context("spawn")
    tensor = torch.zeros(1 << 20, device="cuda")
    queue = context.Queue()
    context.Process(target=add, args=(queue,), daemon=True).start()
    queue.put(tensor)
    while not tensor.max():
        time.sleep(0.1)
    for rounds in range(1, sys.maxsize):
        time.sleep(0.1)
        log.write_text(f"{rounds} bad={int(tensor.min() != tensor.max())}\n")


if __name__ == "__main__":
    main()
