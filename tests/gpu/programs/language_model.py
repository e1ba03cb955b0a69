"""A training whose memory is worth a look: ``language_model.py READY DTYPE WIDTH LAYERS STEPS``.

Trains a small language model with Adam on the GPU, or on the CPU where there is none, in
``fp32`` or ``bf16``; writes the loss into READY after so many steps and waits.
"""

import signal
import sys
from pathlib import Path

import torch
from torch import nn

VOCABULARY, CONTEXT, BATCH = 8192, 128, 4


class LanguageModel(nn.Module):  # type: ignore[misc]
    """Embedding, attention layers, and the embedding again."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token for each."""
        return self.layers(self.embedding(tokens)) @ self.embedding.weight.T


def main() -> None:
    ready, dtype, width, layers, steps = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    model = LanguageModel(width, layers).to(device, kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(steps):
        # Text repeats itself as these numbers do: most words are rare, a few are everywhere.
        tokens = torch.rand(BATCH, CONTEXT + 1).pow(6).mul(VOCABULARY).long().to(device)
        logits = model(tokens[:, :-1]).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ready.write_text(f"{loss.item():.6f} {device}\n")
    signal.pause()


if __name__ == "__main__":
    main()
