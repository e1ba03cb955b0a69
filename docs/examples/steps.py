"""Estimates pi by throwing darts, for ``gpusnap run`` to save and to restart.

::

    gpusnap run --name darts --every-steps 20 --restart 3 -- python steps.py
"""

import random

import gpusnap

STEPS, DARTS = 50, 2_000


def main() -> None:
    """Throw the darts, so many a step."""
    random.seed(0)
    hits = 0
    for step in range(STEPS):
        hits += sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(DARTS))
        print(f"step {step}: {4 * hits / DARTS / (step + 1):.6f}", flush=True)
        gpusnap.step()


if __name__ == "__main__":
    main()
