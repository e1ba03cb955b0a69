"""``python -m tests.faults``: the whole matrix; with ``--random N``: strikes at random moments.

The last line says how many points were tried and how many survived; the exit code is 1 if any
did not.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.matrix import COMMANDS, run_matrix, tables
from tests.faults.moments import Moment, Moments

_EITHER = ("gpusnap", "worker")


def matrix(folder: Path, commands: Sequence[str]) -> bool:
    rows = []
    for row in run_matrix(folder, commands):
        rows.append(row)
        print(f"{row.scene:26} {row.point:22} {row.victim:14} {row.outcome}", flush=True)
    print()
    print("\n".join(tables(rows)))
    return concluded(len(rows), sum(row.survived for row in rows))


def at_random(folder: Path, count: int, seed: int, victim: str | None) -> bool:
    moments = Moments(folder, seed, (victim,) if victim else _EITHER)
    lives = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in moments.lives.items())
    print(f"seed {seed}; undisturbed, so long live: {lives}", flush=True)
    try:
        tried = [moment for moment in told(moments.strikes(count)) if moment.hit or moment.problem]
        moments.check_log()
    finally:
        moments.end()
    struck = Counter(moment.victim for moment in tried)
    print(", ".join(f"{name} {times}" for name, times in sorted(struck.items())))
    return concluded(len(tried), sum(not moment.problem for moment in tried))


def told(moments: Iterator[Moment]) -> Iterator[Moment]:
    """Print each as it comes."""
    for moment in moments:
        outcome = moment.problem or ("survived" if moment.hit else "nobody was there")
        print(f"{moment.number:5} {moment.victim:8} {moment.point:26} {outcome}", flush=True)
        yield moment


def concluded(tried: int, survived: int) -> bool:
    print(f"{tried} points, {survived} survived")
    return survived == tried


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--command", action="append", choices=COMMANDS, help="not all; repeatable")
    parser.add_argument("--random", type=int, metavar="N", help="so many strikes at random moments")
    parser.add_argument("--seed", type=int, help="of the random moments")
    parser.add_argument("--victim", choices=("gpusnap", "worker", "criu"), help="only this one")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # and end the targets
    seed = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.random is None:
            survived = matrix(Path(folder), arguments.command or COMMANDS)
        else:
            survived = at_random(Path(folder), arguments.random, seed, arguments.victim)
    print(f"took {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 0 if survived else 1


if __name__ == "__main__":
    sys.exit(main())
