"""Measures on this machine what gpusnap costs beside bare system calls and beside CRIU alone."""

from gpusnap.bench.measure import DEFAULT_ROUNDS, DEFAULT_SIZE, BenchOptions, run_bench
from gpusnap.bench.report import Native, Rates, Report, Spread

__all__ = [
    "DEFAULT_ROUNDS",
    "DEFAULT_SIZE",
    "BenchOptions",
    "Native",
    "Rates",
    "Report",
    "Spread",
    "run_bench",
]
