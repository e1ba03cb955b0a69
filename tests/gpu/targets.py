"""The programs that are checkpointed on real hardware, and what the driver says of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gpusnap.target import alive, identity
from gpusnap.types import ProcessId

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 120.0


def await_true(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)


def build(name: str, folder: Path) -> Path:
    """Compile one of the programs for the GPU at hand."""
    program = folder / name
    if not program.exists():
        source = PROGRAMS / f"{name}.cu"
        subprocess.run(["nvcc", "-O2", "-arch=native", "-o", program, source], check=True)
    return program


def query(fields: str, *, processes: bool = False) -> list[list[str]]:
    """Ask nvidia-smi: an outside witness, which gpusnap does not use."""
    kind = "compute-apps" if processes else "gpu"
    command = ["nvidia-smi", f"--query-{kind}={fields}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split(", ") for line in text.splitlines() if line]


def used_mib() -> int:
    """Memory in use on GPU 0, in MiB."""
    return int(query("memory.used")[0][0])


def on_gpu(pid: int) -> bool:
    return any(int(row[0]) == pid for row in query("pid", processes=True) if row[0].isdigit())


@dataclass
class Target:
    """A running program and the log it writes."""

    process: ProcessId
    log: Path

    @classmethod
    def start(cls, command: list[str | Path], log: Path) -> Self:
        """Start it as init's child in a session of its own, without pipes."""
        pid_file = log.with_suffix(".pid")
        for path in (pid_file, log):
            path.unlink(missing_ok=True)
        script = f'echo $$ > "{pid_file}"; exec "$@"'
        with log.with_suffix(".out").open("w") as output:
            subprocess.run(
                ["setsid", "-f", "sh", "-c", script, "sh", *map(str, command)],
                env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=True,
            )
        await_true(lambda: pid_file.exists() and pid_file.read_text() != "", "the program starts")
        process = identity(int(pid_file.read_text()))
        if process is None:
            raise RuntimeError(log.with_suffix(".out").read_text())
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return alive(self.process)

    def adopt(self) -> None:
        """Take the restored process for this one: same PID, another start."""
        restored = identity(self.pid)
        if restored is None:
            raise RuntimeError(f"process {self.pid} is not there")
        self.process = restored

    def kill(self) -> None:
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
        await_true(lambda: identity(self.pid) is None, "the PID is free")


class Counter(Target):
    """counter.cu or managed.cu: ``ROUND bad=MISMATCHES``."""

    def read(self) -> tuple[int, int]:
        for _ in range(100):
            text = self.log.read_text() if self.log.exists() else ""
            if text.endswith("\n"):
                rounds, _, bad = text.partition(" bad=")
                return int(rounds), int(bad)
            time.sleep(0.01)
        return 0, 0

    def advance(self, rounds: int = 3) -> int:
        """Wait for more rounds; returns the mismatches seen."""
        begin = self.read()[0]
        await_true(lambda: self.read()[0] >= begin + rounds, "the program counts on")
        return self.read()[1]


class Training(Target):
    """train.py: one line a step."""

    def steps(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def losses(self) -> dict[int, set[str]]:
        """Step to the losses logged for it: one each, also where a step ran twice."""
        found: dict[int, set[str]] = {}
        for line in self.log.read_text().splitlines():
            step, _, loss = line.partition(" ")
            if step != "done":
                found.setdefault(int(step), set()).add(loss)
        return found

    def finish(self) -> dict[int, set[str]]:
        await_true(lambda: not self.alive, "the training ends", 300.0)
        if not self.log.read_text().endswith("done\n"):
            raise RuntimeError(self.log.with_suffix(".out").read_text()[-2000:])
        return self.losses()


def start_counter(gib: float, folder: Path) -> Counter:
    log = folder / "counter.log"
    counter = Counter.start([build("counter", folder), str(gib), log], log)
    counter.advance()
    return counter


def start_training(
    folder: Path, name: str, steps: int, layers: int, width: int, workers: int = 0
) -> Training:
    log = folder / f"{name}.log"
    numbers = map(str, (steps, layers, width, workers))
    command: list[str | Path] = [sys.executable, PROGRAMS / "train.py", log, *numbers]
    return Training.start(command, log)
