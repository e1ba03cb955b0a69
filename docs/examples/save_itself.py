"""Estimates pi by throwing darts, and saves itself half-way; needs nothing but gpusnap.

::

    python save_itself.py >> darts.log
    gpusnap restore ./snapshots/half --wait
"""

import random

import gpusnap

DARTS = 200_000


def main() -> None:
    """Throw the darts."""
    random.seed(0)
    hits = 0
    for dart in range(DARTS):
        if dart == DARTS // 2:
            result = gpusnap.checkpoint_self("./snapshots/half")
            print(f"{result.outcome} before dart {dart}", flush=True)
        hits += random.random() ** 2 + random.random() ** 2 < 1
    print(f"pi is about {4 * hits / DARTS}", flush=True)


if __name__ == "__main__":
    main()
