"""The programs that are checkpointed on real hardware, and what the driver says of them."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

import psutil

from gpusnap.target import alive, identity
from gpusnap.types import ProcessId

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 120.0
MARK = "GPUSNAP_GPU_SCRIPT"
"""Variable that everything a script starts inherits, restored programs too."""


def await_true(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)


def build(name: str) -> Path:
    """Compile one of the programs for the GPU at hand, once for all scripts."""
    source = PROGRAMS / f"{name}.cu"
    digest = hashlib.sha256(source.read_bytes() + (PROGRAMS / "check.cuh").read_bytes())
    folder = Path(tempfile.gettempdir()) / f"gpusnap-programs-{digest.hexdigest()[:12]}"
    program = folder / name
    if not program.exists():
        folder.mkdir(exist_ok=True)
        draft = folder / f"{name}.new"
        command = ["nvcc", "-O2", "-arch=native", "-o", str(draft), str(source)]
        subprocess.run(command, check=True, timeout=PATIENCE_S)
        draft.replace(program)
    return program


def _terminated(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


@contextmanager
def supervised() -> Iterator[None]:
    """End what the script started when it ends, also where a time limit's SIGTERM ends it."""
    os.environ[MARK] = str(os.getpid())
    signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        end_all()


def end_all() -> None:
    """Kill whatever was started since :func:`supervised` and is still there."""
    marked = f"{MARK}={os.getpid()}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        # A process that ends meanwhile is no concern any more.
        with contextlib.suppress(OSError):
            if marked in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


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

    def await_true(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something the program does, and no longer than it lives."""

        def done() -> bool:
            gone = identity(self.pid) is None
            if condition():
                return True
            if gone:
                raise RuntimeError(f"the program ended before {what}: {self.said()}")
            return False

        await_true(done, what)

    def said(self) -> str:
        """The end of what it printed."""
        output = self.log.with_suffix(".out")
        return output.read_text(errors="replace")[-2000:] if output.exists() else ""

    def kill(self) -> None:
        """Kill the tree, also one that was restored and not yet adopted."""
        # A session's leader with this PID is the program or its copy.
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(self.pid) == self.pid:
                tree = psutil.Process(self.pid)
                for process in (tree, *tree.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
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
        self.await_true(lambda: self.read()[0] >= begin + rounds, "it counted on")
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
            raise RuntimeError(self.said())
        return self.losses()


def start_counter(gib: float, folder: Path) -> Counter:
    log = folder / "counter.log"
    counter = Counter.start([build("counter"), str(gib), log], log)
    counter.advance()
    return counter


def start_training(
    folder: Path, name: str, steps: int, layers: int, width: int, workers: int = 0
) -> Training:
    log = folder / f"{name}.log"
    numbers = map(str, (steps, layers, width, workers))
    command: list[str | Path] = [sys.executable, PROGRAMS / "train.py", log, *numbers]
    return Training.start(command, log)
