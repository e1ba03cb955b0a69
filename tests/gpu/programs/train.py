"""GPT-2-shaped training with Adam, deterministic: ``train.py LOG STEPS LAYERS WIDTH WORKERS``.

Appends ``step loss`` for every step, then ``done``. The batches come from a DataLoader with so many
forked workers, started after the model is on the GPU. Set CUBLAS_WORKSPACE_CONFIG=:4096:8.
"""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY, CONTEXT, BATCH = 50257, 128, 4


class Batches(torch.utils.data.Dataset[torch.Tensor]):  # type: ignore[misc]
    """As many as there are steps, each from a seed of its own."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step)
        return torch.randint(0, VOCABULARY, (BATCH, CONTEXT), generator=generator)


def main() -> None:
    log, steps, layers, width, workers = Path(sys.argv[1]), *map(int, sys.argv[2:])
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    shape = GPT2Config(
        n_layer=layers, n_embd=width, n_head=width // 64, n_positions=256, use_cache=False
    )
    model = GPT2LMHeadModel(shape).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = torch.utils.data.DataLoader(Batches(steps), batch_size=None, num_workers=workers)
    with log.open("a", buffering=1) as file:
        for step, host_tokens in enumerate(batches):
            tokens = host_tokens.cuda()
            loss = model(tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            file.write(f"{step} {loss.item():.9f}\n")
        file.write("done\n")


if __name__ == "__main__":
    main()
