"""Jobs that survive, branches and preemption, on real hardware.

    python tests/gpu/jobs.py --output FILE [--images FOLDER] [--only SCENARIO[,SCENARIO]...]

Needs what evidence.py needs. Writes one JSON file, anew after every scenario, and exits with 1 if a
scenario failed.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpusnap.repository import Repository
from gpusnap.types import ProcessId
from tests.gpu.evidence import Figures, Lab, folder_in, must, run_all
from tests.gpu.targets import (
    PROGRAMS,
    Training,
    await_true,
    query,
    start_training,
    supervised,
    used_mib,
)

EPOCHS, STEPS = 3, 60
RATE, OTHER_RATE = "1e-4", "3e-4"
LARGE = {"steps": 1000, "layers": 12, "width": 1024}
SMALL = {"steps": 600, "layers": 4, "width": 512}
EVERY_S = 10
HOG = "import torch; n=torch.cuda.mem_get_info()[0]; x=torch.zeros(int(n*.98)//4, device='cuda')"


def _command(log: Path, snapshots: Path) -> list[str | Path]:
    program: list[str | Path] = [sys.executable, PROGRAMS / "train_epochs.py"]
    return [*program, log, str(EPOCHS), str(STEPS), snapshots]


def _environment(lab: Lab) -> dict[str, str]:
    return {
        **os.environ,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "GPUSNAP_REPO": str(lab.repository),
    }


def _uninterrupted(lab: Lab, log: Path, snapshots: Path) -> None:
    """Run the training to its end; what it says goes where it can be found after a restore."""
    with log.with_suffix(".out").open("a") as output:
        subprocess.run(
            [*map(str, _command(log, snapshots))],
            env=_environment(lab),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            check=True,
            timeout=200,
        )


def _losses(log: Path) -> dict[int, set[str]]:
    return Training(ProcessId(0, 0), log).losses()


def _finished(log: Path) -> bool:
    return log.exists() and log.read_text().endswith("done\n")


def resumed_under_run(lab: Lab) -> Figures:
    """Killed in the middle of an epoch, it goes on from the snapshot it took of itself."""
    alone, log = lab.folder / "alone.log", lab.folder / "job.log"
    snapshots = lab.images / "epochs"
    _uninterrupted(lab, alone, lab.images / "alone")
    shutil.rmtree(lab.images / "alone")
    command = [
        sys.executable,
        "-m",
        "gpusnap",
        "run",
        "--name",
        "job",
        "--fresh",
        "--restart",
        "3",
        "--",
    ]
    with (lab.folder / "run.out").open("w") as output:
        supervisor = subprocess.Popen(
            [*command, *map(str, _command(log, snapshots))],
            env=_environment(lab),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    middle = STEPS + STEPS // 2
    await_true(lambda: log.exists() and len(log.read_text().splitlines()) > middle, "mid-epoch")
    (job,) = _jobs(supervisor.pid)
    os.kill(job, signal.SIGKILL)
    at_step = len(log.read_text().splitlines())
    code = supervisor.wait(timeout=300)
    said = (lab.folder / "run.out").read_text()
    must(code == 0, f"run exited with {code}: {said}")
    must(_finished(log), said)
    must(_losses(log) == _losses(alone), "the losses are those of an uninterrupted run")
    return {
        "steps": EPOCHS * STEPS,
        "identical": len(_losses(log)),
        "killed_at_step": at_step,
        "said": said.splitlines(),
    }


def _jobs(supervisor: int) -> list[int]:
    found = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return [int(pid) for pid in found if _name(int(pid)).startswith(("python", "pt_"))]


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def branches(lab: Lab) -> Figures:
    """Two continuations of the first epoch: with the same learning rate, and with another."""
    folder = lab.folder / "branches"
    folder.mkdir()
    log, snapshots = folder / "job.log", lab.images / "branched"
    _uninterrupted(lab, log, snapshots)
    reference = _losses(log)
    command = ["branch", snapshots / "epoch_0.ckpt", "--grid", f"lr={RATE},{OTHER_RATE}"]
    ran = lab.gpusnap(*command, "--devices", "0", "--per-device", "2", "--private", folder)
    found = [_losses(Path(f"{folder}.branch-{number}") / "job.log") for number in (1, 2)]
    differs = [
        min((s for s in reference if each.get(s) != reference[s]), default=None) for each in found
    ]
    must(differs[0] is None, f"the unchanged branch differs from step {differs[0]} on")
    # The first step of the branch still has the old weights.
    must(differs[1] == STEPS + 1, f"the other differs from step {differs[1]} on")
    return {"branched_at_step": STEPS, "differs_from_step": differs, "branch": ran}


def preempted(lab: Lab) -> Figures:
    """An urgent job gets nearly all of the GPU's memory; the first then ends identically."""
    reference = start_training(lab.folder, "first-alone", **SMALL).finish()
    training = start_training(lab.folder, "first", **SMALL)
    training.await_true(lambda: training.steps() > SMALL["steps"] // 4, "a quarter")
    before = used_mib()
    command = [sys.executable, "-m", "gpusnap", "preempt", str(training.pid), "--for"]
    peak_command = f'{sys.executable} -c "{HOG}; import subprocess; {_SMI}"'
    begin = time.monotonic()
    ran = subprocess.run(
        [*command, peak_command], capture_output=True, text=True, check=False, timeout=300
    )
    took = time.monotonic() - begin
    must(ran.returncode == 0, ran.stderr)
    losses = training.finish()
    must(losses == reference, "the losses are those of an uninterrupted run")
    total = int(query("memory.total")[0][0])
    return {
        "gpu_mib": {"total": total, "first": before, "urgent": int(ran.stdout.split()[-1])},
        "seconds": took,
        "identical": len(losses),
    }


_SMI = (
    "q=['nvidia-smi','-i','0','--query-gpu=memory.used','--format=csv,noheader,nounits']; "
    "print(subprocess.run(q,capture_output=True,text=True).stdout)"
)


def interval(lab: Lab) -> Figures:
    """Snapshots at a short interval: frozen seconds each, and what they would cost at 30 min."""
    log = lab.folder / "interval.log"
    numbers = map(str, (*LARGE.values(), 0))
    job = [sys.executable, str(PROGRAMS / "train.py"), str(log), *numbers]
    command = [sys.executable, "-m", "gpusnap", "run", "--every", f"{EVERY_S}s", "--keep-last", "6"]
    begin = time.monotonic()
    ran = subprocess.run(
        [*command, "--name", "interval", "--", *job],
        env=_environment(lab),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    took = time.monotonic() - begin
    must(ran.returncode == 0, ran.stderr)
    must(_finished(log), "the job came to its end")
    manifests = [each.manifest for each in Repository.open(lab.repository).snapshots()]
    frozen = [each.frozen_us / 1e6 for each in manifests]
    must(bool(frozen), "there are snapshots")
    mean = sum(frozen) / len(frozen)
    lab.clean()
    return {
        "every_seconds": EVERY_S,
        "run_seconds": took,
        "frozen_seconds": frozen,
        "mean_frozen_seconds": mean,
        "share_lost_at_30_min": mean / 1800,
        "said": ran.stderr.splitlines()[-20:],
    }


SCENARIOS: tuple[Callable[[Lab], Figures], ...] = (
    resumed_under_run,
    branches,
    preempted,
    interval,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--images", type=Path, default=Path("/dev/shm/gpusnap-jobs"))
    parser.add_argument("--only", action="append", default=[], metavar="SCENARIO")
    arguments = parser.parse_args()
    with folder_in(arguments.images) as images, supervised():
        lab = Lab(images, None)
        return run_all(SCENARIOS, lab, arguments.output, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
