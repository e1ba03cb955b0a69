"""Jobs on two GPUs, and several jobs at once, on real hardware.

    python tests/gpu/several.py --output FILE [--images FOLDER] [--cycles N]
        [--only SCENARIO[,SCENARIO]...]

Needs what evidence.py needs, and two GPUs. CRIU cannot save io_uring, which torchrun uses where it
may: the script forbids it (kernel.io_uring_disabled) and puts that back. Multicast over NVLink
stays off: a program that uses it can put GPUs out of service. Writes one JSON file, anew after
every scenario, and exits with 1 if a scenario failed.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu.evidence import Figures, Lab, folder_in, must, run_all
from tests.gpu.targets import (
    PROGRAMS,
    Counter,
    Target,
    await_true,
    build,
    on_gpu,
    query,
    start_counter,
    supervised,
)

STEPS, FEW_STEPS = 600, 100
MARGIN = 60
"""Steps before the end in which no cycle begins: it could come too late."""
CYCLES = 10
SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}
ALWAYS = {"NCCL_NVLS_ENABLE": "0"}
IO_URING = Path("/proc/sys/kernel/io_uring_disabled")


@dataclass
class Ranks(Target):
    """ddp.py under torchrun; the root is torchrun."""

    def steps(self) -> int:
        """Of the rank that is behind."""
        return min(len(text.splitlines()) for text in self._logs())

    def _logs(self) -> list[str]:
        paths = [Path(f"{self.log}.{rank}") for rank in (0, 1)]
        return [path.read_text() if path.exists() else "" for path in paths]

    def losses(self) -> list[dict[str, set[str]]]:
        """For each rank step to losses: one each, also where a step ran twice."""
        found: list[dict[str, set[str]]] = []
        for text in self._logs():
            steps: dict[str, set[str]] = {}
            for line in text.splitlines():
                step, _, loss = line.partition(" ")
                steps.setdefault(step, set()).add(loss)
            found.append(steps)
        return found

    def finish(self) -> list[dict[str, set[str]]]:
        await_true(lambda: not self.alive, "the ranks end", 240.0)
        if not all(text.endswith("done\n") for text in self._logs()):
            raise RuntimeError(self.said())
        return self.losses()


def start_ranks(folder: Path, name: str, environment: dict[str, str], steps: int) -> Ranks:
    log = folder / f"{name}.log"
    for rank in (0, 1):
        Path(f"{log}.{rank}").unlink(missing_ok=True)
    variables = [f"{key}={value}" for key, value in (ALWAYS | environment).items()]
    program = ["--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port=29511"]
    command: list[str | Path] = ["env", *variables, sys.executable, "-m", "torch.distributed.run"]
    return Ranks.start([*command, *program, PROGRAMS / "ddp.py", log, str(steps)], log)


@contextmanager
def no_io_uring() -> Iterator[None]:
    before = IO_URING.read_text()
    IO_URING.write_text("2")
    try:
        yield
    finally:
        IO_URING.write_text(before)


def ranks_over_sockets(lab: Lab, cycles: int) -> Figures:
    """torchrun and both ranks killed and restored as one tree, again and again."""
    with no_io_uring():
        reference = start_ranks(lab.folder, "sockets-alone", SOCKETS, STEPS).finish()
        ranks = start_ranks(lab.folder, "sockets", SOCKETS, STEPS)
        ranks.await_true(lambda: ranks.steps() > 20, "they were under way")
        trips: list[Figures] = []
        try:
            for cycle in range(cycles):
                if ranks.steps() > STEPS - MARGIN:
                    break
                saved = lab.gpusnap("checkpoint", ranks.pid, f"ranks-{cycle}", "--kill")
                steps = ranks.steps()
                must(not ranks.alive and steps < STEPS, "the job was killed before its end")
                restored = lab.gpusnap("restore", f"ranks-{cycle}")
                ranks.adopt()
                ranks.await_true(lambda steps=steps: ranks.steps() > steps + 5, "they went on")  # type: ignore[misc]
                trips.append({"at_step": steps, "checkpoint": saved, "restore": restored})
                lab.clean()
            losses = ranks.finish()
        finally:
            ranks.kill()
    must(losses == reference, "the losses of both ranks are those of an uninterrupted run")
    return {"steps": STEPS, "cycles": len(trips), "identical": True, "trips": trips}


def ranks_over_nvlink(lab: Lab) -> Figures:
    """NCCL's own choice of transport: refused before anything is locked; both ranks run on."""
    with no_io_uring():
        reference = start_ranks(lab.folder, "nvlink-alone", {}, FEW_STEPS).finish()
        ranks = start_ranks(lab.folder, "nvlink", {}, FEW_STEPS)
        ranks.await_true(lambda: ranks.steps() > 20, "they were under way")
        refused = lab.gpusnap("checkpoint", ranks.pid, "nvlink", expect=16)
        must("lock_us" not in refused, "nothing was locked")
        at_step = ranks.steps()
        losses = ranks.finish()
    must(losses == reference, "the losses are those of an undisturbed run")
    found: Figures = {"steps": FEW_STEPS, "refused_at_step": at_step, "identical": True}
    return found | {"refused": refused}


def shared_tensor(lab: Lab) -> Figures:
    """A tensor shared by CUDA IPC between two processes: refused, both run on."""
    log = lab.folder / "shared.log"
    pair = Counter.start([sys.executable, PROGRAMS / "shared_tensor.py", log], log)
    pair.advance()
    refused = lab.gpusnap("checkpoint", pair.pid, "shared", expect=16)
    must("lock_us" not in refused, "nothing was locked")
    pair.advance()
    pair.kill()
    return refused


def moved(lab: Lab) -> Figures:
    """A process of GPU 0 comes back on GPU 1."""
    counter = start_counter(4.0, lab.folder)
    uuids = [row[0] for row in query("uuid")]
    saved = lab.gpusnap("checkpoint", counter.pid, "moved", "--kill")
    restored = lab.gpusnap("restore", "moved", "--device-map", "0=1")
    counter.adopt()
    bad = counter.advance()
    used = [int(row[0]) for row in query("memory.used")]
    where = {row[1] for row in query("pid,gpu_uuid", processes=True) if row[0] == str(counter.pid)}
    counter.kill()
    lab.clean()
    must(bad == 0, f"{bad} words differ")
    must(where <= {uuids[1]}, f"it is on {where}, not on {uuids[1]}")
    must(used[1] > 1024, f"{used} MiB in use")
    found: Figures = {"mismatches": bad, "gpu": sorted(where), "gpu_mib": used}
    return found | {"checkpoint": saved, "restore": restored}


def two_at_once(lab: Lab) -> Figures:
    """Two jobs, one a GPU, saved at the same time and restored at the same time."""
    program = build("counter")
    jobs: list[Counter] = []
    for number in (0, 1):
        log = lab.folder / f"job-{number}.log"
        variable = f"CUDA_VISIBLE_DEVICES={number}"
        jobs.append(Counter.start(["env", variable, program, "4", log], log))
    for job in jobs:
        job.advance()
    begin = time.monotonic()
    _all(lab, [["checkpoint", str(job.pid), f"job-{job.pid}", "--kill"] for job in jobs])
    saved = time.monotonic() - begin
    must(not any(on_gpu(job.pid) for job in jobs), "both are gone")
    begin = time.monotonic()
    _all(lab, [["restore", f"job-{job.pid}"] for job in jobs])
    restored = time.monotonic() - begin
    for job in jobs:
        job.adopt()
    bad = [job.advance() for job in jobs]
    for job in jobs:
        job.kill()
    lab.clean()
    must(bad == [0, 0], f"{bad} words differ")
    return {"mismatches": bad, "checkpoint_seconds": saved, "restore_seconds": restored}


def _all(lab: Lab, commands: list[list[str]]) -> None:
    environment = {**os.environ, "GPUSNAP_REPO": str(lab.repository)}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "gpusnap", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    for process in running:
        said, _ = process.communicate(timeout=300)
        must(process.returncode == 0, said)


def side_by_side(lab: Lab) -> Figures:
    """One snapshot restored three times; each has PIDs of its own."""
    counter = start_counter(2.0, lab.folder)
    saved = lab.gpusnap("checkpoint", counter.pid, "one", "--kill")
    restored = [lab.gpusnap("restore", "one", "--new-pids") for _ in range(3)]
    pids = {int(row[0]) for row in query("pid", processes=True) if row[0].isdigit()}
    listed = lab.gpusnap("ps")
    must(len(pids) == 3, f"three processes are on the GPUs, not {pids}")
    begin = counter.read()[0]
    await_true(lambda: counter.read()[0] >= begin + 9, "they count on")
    bad = counter.read()[1]
    for pid in pids:
        os.kill(pid, 9)
    lab.clean()
    must(bad == 0, f"{bad} words differ")
    return {"mismatches": bad, "checkpoint": saved, "restores": restored, "ps": listed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--images", type=Path, default=Path("/dev/shm/gpusnap-several"))
    parser.add_argument("--cycles", type=int, default=CYCLES)
    parser.add_argument("--only", action="append", default=[], metavar="SCENARIO")
    arguments = parser.parse_args()

    def cycles(lab: Lab) -> Figures:
        return ranks_over_sockets(lab, arguments.cycles)

    cycles.__name__, cycles.__doc__ = ranks_over_sockets.__name__, ranks_over_sockets.__doc__
    scenarios: list[Callable[[Lab], Figures]] = [
        side_by_side,
        shared_tensor,
        moved,
        two_at_once,
        cycles,
        ranks_over_nvlink,
    ]
    with folder_in(arguments.images) as images, supervised():
        lab = Lab(images, None)
        return run_all(scenarios, lab, arguments.output, arguments.only, gpus=len(query("uuid")))


if __name__ == "__main__":
    sys.exit(main())
