"""Measures what each codec makes of the memory of a real training, and how fast.

    python tests/gpu/compression.py --output FILE [--python PYTHON] [--folder FOLDER]...
        [--width W] [--layers N]

Needs root, and PyTorch in PYTHON. On a machine with a GPU the training is suspended first, so that
its device memory is measured; else it trains on the CPU. Writes one JSON file, anew after every
folder. A rate is bytes but zeros by the seconds from the first copy to the last byte on FOLDER's
disk; the first of them lies in memory unless named, and a slower one shows what ``auto`` does
there. Threads are as many as CPUs.
"""

import argparse
import datetime as dt
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpusnap.datapath import Compression, Saver, Saving, Span
from gpusnap.datapath.heap import keep_freed_memory
from gpusnap.errors import EXIT_WARNINGS
from gpusnap.regions import host_spans
from gpusnap.room import file_system
from gpusnap.target import find_target
from tests.gpu.targets import PATIENCE_S, await_true, query, supervised

PROGRAM = Path(__file__).parent / "programs" / "language_model.py"
STEPS = 5

SHOWN = ("saved_of_nonzero", "gb_per_s", "rate_over_raw", "stored")

Figures = dict[str, object]


def start(
    python: str, dtype: str, size: tuple[int, int], folder: Path
) -> tuple[subprocess.Popen[bytes], str]:
    ready = folder / f"ready-{dtype}"
    command = [python, str(PROGRAM), str(ready), dtype, *map(str, (*size, STEPS))]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    begin = time.monotonic()
    await_true(lambda: ready.exists() or process.poll() is not None, "trained", 4 * PATIENCE_S)
    if process.poll() is not None:
        sys.exit(f"the training ended with {process.returncode}")
    await_true(lambda: ready.read_text().endswith("\n"), "the loss is written")
    print(f"{dtype} trained in {time.monotonic() - begin:.0f} s", flush=True)
    return process, ready.read_text().strip()


def save(spans: tuple[Span, ...], compression: Compression, folder: Path) -> Figures:
    """Save once; the seconds, and what was stored."""
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.perf_counter()
    saver = Saver(folder, Saving(compression=compression))
    saver.copy(spans, lambda *_: None)
    copied = time.perf_counter()
    memory = saver.finish(lambda *_: None)
    end = time.perf_counter()
    return {
        "seconds": end - begin,
        "copy_seconds": copied - begin,
        "raw": memory.raw,
        "zero": memory.zero,
        "stored": memory.stored,
        "codecs": {use.codec: [use.raw, use.stored] for use in memory.codecs},
    }


def measure(pid: int, folder: Path, codecs: list[Compression], count: int) -> dict[str, Figures]:
    """Every codec in turn, so that what else the machine does meets all of them.

    In each round another one is first: memory that was freed just before is sooner had.
    """
    spans = host_spans(find_target(pid), ())
    rounds: list[dict[str, Figures]] = []
    for number in range(count):
        turn = codecs[number % len(codecs) :] + codecs[: number % len(codecs)]
        rounds.append({each.value: save(spans, each, folder / "regions") for each in turn})
        print({name: f"{each['seconds']:.2f} s" for name, each in rounds[-1].items()}, flush=True)
    table: dict[str, Figures] = {}
    for codec, first in rounds[0].items():
        seconds = [float(str(each[codec]["seconds"])) for each in rounds]
        held = int(str(first["raw"])) - int(str(first["zero"]))
        table[codec] = {
            **first,
            "seconds": seconds,
            "saved_of_nonzero": 1 - int(str(first["stored"])) / held,
            "gb_per_s": held / statistics.median(seconds) / 1e9,
        }
    raw = table["none"]["gb_per_s"]
    for row in table.values():
        row["rate_over_raw"] = float(str(row["gb_per_s"])) / float(str(raw))
    return table


def measure_training(
    dtype: str, asked: argparse.Namespace, folders: list[Path]
) -> Iterator[Figures]:
    """Train, take the program off the device or stop it, and measure on every folder's disk.

    Yields what was found so far, after every folder.
    """
    codecs = [Compression(each) for each in asked.codec or Compression]
    with tempfile.TemporaryDirectory(prefix="gpusnap-") as own:
        process, said = start(asked.python, dtype, (asked.width, asked.layers), Path(own))
        device = said.split()[1]
        found: Figures = {"device": device}
        try:
            if device == "cuda":
                command = [sys.executable, "-m", "gpusnap", "suspend", str(process.pid)]
                suspended = subprocess.run(command, check=False, timeout=PATIENCE_S)
                if suspended.returncode not in {0, EXIT_WARNINGS}:
                    sys.exit(f"gpusnap suspend exited with {suspended.returncode}")
                found["gpu"] = query("name,driver_version")[0]
            else:
                process.send_signal(signal.SIGSTOP)
            for folder in folders:
                with tempfile.TemporaryDirectory(prefix="gpusnap-", dir=folder) as name:
                    table = measure(process.pid, Path(name), codecs, asked.rounds)
                found[f"on {file_system(folder)}"] = table
                print(dtype, device, folder, file_system(folder), flush=True)
                for codec, row in table.items():
                    print(f"  {codec:8}", {key: row[key] for key in SHOWN}, flush=True)
                yield found
        finally:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", type=Path, action="append")
    parser.add_argument("--codec", choices=[*Compression], action="append")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    arguments = parser.parse_args()
    keep_freed_memory()  # as the command has it
    found: Figures = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
        "training": {
            "width": arguments.width,
            "layers": arguments.layers,
            "steps": STEPS,
            "optimizer": "Adam",
        },
    }
    for dtype in ("fp32", "bf16"):
        folders = arguments.folder or [Path("/dev/shm")]
        for each in measure_training(dtype, arguments, folders):
            found[dtype] = each
            arguments.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    with supervised():
        main()
