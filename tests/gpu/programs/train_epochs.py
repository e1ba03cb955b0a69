"""train.py with snapshots by itself: ``train_epochs.py LOG EPOCHS STEPS FOLDER``.

Saves the whole process after each epoch of so many steps, as FOLDER/epoch_N.ckpt. Where an epoch
was saved already it goes on after the last. A restored process takes the learning rate ``lr`` if it
is given one, and then saves no more: other branches would write to the same folder. Appends
``step loss`` for every step, then ``done``. Set CUBLAS_WORKSPACE_CONFIG=:4096:8.
"""

import sys
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gpusnap.torch import CheckpointWrapper

VOCABULARY, CONTEXT, BATCH = 50257, 128, 4
LAYERS, WIDTH = 4, 512
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAUSE_S = 0.02
"""After each step, so that an epoch lasts long enough to be interrupted."""


def tokens_of(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, VOCABULARY, (BATCH, CONTEXT), generator=generator).to(DEVICE)


def main() -> None:
    log, epochs, steps, folder = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    shape = GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=WIDTH // 64, n_positions=256, use_cache=False
    )
    model = GPT2LMHeadModel(shape).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    wrapper = CheckpointWrapper(model, optimizer, checkpoint_dir=folder)
    if wrapper.epochs():
        wrapper.load()
    branched = False
    with log.open("a", buffering=1) as file:
        for epoch in range(epochs):
            for step in range(epoch * steps, (epoch + 1) * steps):
                tokens = tokens_of(step)
                loss = model(tokens, labels=tokens).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                file.write(f"{step} {loss.item():.9f}\n")
                time.sleep(PAUSE_S)
            if branched:
                continue
            result = wrapper.save(epoch)
            if "lr" in result.overrides:
                branched = True
                for group in optimizer.param_groups:
                    group["lr"] = float(result.overrides["lr"])
        file.write("done\n")


if __name__ == "__main__":
    main()
