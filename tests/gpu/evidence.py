"""Checkpoints real GPU programs by gpusnap and by plain CRIU, and writes down what came of it.

    python tests/gpu/evidence.py --output FILE [--images FOLDER] [--cuda-plugin FOLDER]

Needs root, one NVIDIA GPU with a driver from 570 on, nvcc, PyTorch with transformers, and a
CRIU that gpusnap finds. ``--cuda-plugin`` names a folder with CRIU's ``cuda_plugin.so`` and the
``cuda-checkpoint`` program; without it the comparison with plain CRIU is skipped and said so.
Writes one JSON file, anew after every scenario, and exits with 1 if a scenario failed.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpusnap.criu import find_criu
from tests.gpu.targets import (
    Counter,
    await_true,
    build,
    end_all,
    on_gpu,
    query,
    start_counter,
    start_training,
    supervised,
    used_mib,
)

COUNTER_GIB = 8.0
COMMAND_S = 240
"""How long one command may take."""
WARNED = 3
"""What a command exits with that succeeded with warnings."""
TRAINING = {"steps": 500, "layers": 12, "width": 1024}
SMALL_TRAINING = {"steps": 600, "layers": 4, "width": 512}

Figures = dict[str, object]


class Lab:
    """Where the scenarios work."""

    def __init__(self, images: Path, plugin: Path | None) -> None:
        self.images = images
        self.plugin = plugin
        self.folder = Path(tempfile.mkdtemp(prefix="gpusnap-evidence-"))
        self.repository = images / "repository"
        self.reference: dict[int, set[str]] | None = None
        self.commands: list[Figures] = []
        self.told: Callable[[], None] = lambda: None

    def gpusnap(self, *arguments: object, expect: int = 0) -> Figures:
        """Run the command line with --json; returns the times, or what it refused with.

        Success with warnings is success; they are named. Every result is printed and kept at once.
        """
        figures = self._gpusnap(arguments, expect)
        words = " ".join(map(str, arguments))
        self.commands.append({words: figures})
        print(f"    {words[:100]}", json.dumps(figures)[:1500], flush=True)
        self.told()
        return figures

    def _gpusnap(self, arguments: Sequence[object], expect: int) -> Figures:
        command = [sys.executable, "-m", "gpusnap", *map(str, arguments), "--json"]
        environment = {**os.environ, "GPUSNAP_REPO": str(self.repository)}
        if self.plugin is not None:
            environment["GPUSNAP_CUDA_PLUGIN"] = str(self.plugin / "cuda_plugin.so")
            environment["GPUSNAP_CUDA_CHECKPOINT"] = str(self.plugin / "cuda-checkpoint")
        begin = time.monotonic_ns()
        ran = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        took = (time.monotonic_ns() - begin) // 1000
        if ran.returncode not in ({0, WARNED} if expect == 0 else {expect}):
            said = f"{ran.stdout[-500:]}\n{ran.stderr[-2000:]}\n{self._log()}"
            raise RuntimeError(f"{arguments[0]} exited with {ran.returncode}: {said}")
        return _figures(_json_lines(ran.stdout + ran.stderr)) | {"wall_us": took}

    def _log(self) -> str:
        """The end of CRIU's newest log, which is gone with the repository."""
        logs = sorted(self.repository.rglob("*.log"), key=lambda each: each.stat().st_mtime)
        return logs[-1].read_text(errors="replace")[-3000:] if logs else ""

    def clean(self) -> None:
        shutil.rmtree(self.repository, ignore_errors=True)


def _json_lines(text: str) -> list[Figures]:
    """Of what a command said, its own lines: a library may say something too."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def _figures(lines: list[Figures]) -> Figures:
    ends = [line for line in lines if line.get("message_type") in {"summary", "exit_error"}]
    last = ends[-1] if ends else lines[-1] if lines else {}
    kind = last.get("message_type")
    if not ends:
        return last
    figures: Figures = {
        f"{line['phase']}_us": line["microseconds"]
        for line in lines
        if line.get("message_type") == "phase" and line.get("state") == "finished"
    }
    if kind == "exit_error":
        return figures | {"code": last["code"], "text": last["text"], "cure": last.get("cure")}
    figures |= {"total_us": last["microseconds"], "frozen_us": last.get("frozen_us")}
    return figures | ({"warnings": last["warnings"]} if last.get("warnings") else {})


def must(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def counter_killed(lab: Lab) -> Figures:
    """Checkpoint with --kill, gone from the GPU, restored, pattern intact."""
    idle = used_mib()
    counter = start_counter(COUNTER_GIB, lab.folder)
    busy, rounds = used_mib(), counter.read()[0]
    saved = lab.gpusnap("checkpoint", counter.pid, "counter", "--kill")
    must(not counter.alive, "the target is gone")
    must(not on_gpu(counter.pid), "the target is gone from the GPU")
    between = used_mib()
    restored = lab.gpusnap("restore", "counter")
    counter.adopt()
    bad = counter.advance()
    after = counter.read()[0]
    must(after > rounds, "it counts on from where it was")
    must(bad == 0, f"{bad} words differ")
    counter.kill()
    lab.clean()
    return {
        "gib": COUNTER_GIB,
        "gpu_mib": {"idle": idle, "running": busy, "killed": between},
        "rounds": {"before": rounds, "after": after},
        "mismatches": bad,
        "checkpoint": saved,
        "restore": restored,
    }


def counter_by_criu(lab: Lab) -> Figures:
    """The same with --no-regions: CRIU saves and restores all memory by itself."""
    counter = start_counter(COUNTER_GIB, lab.folder)
    saved = lab.gpusnap("checkpoint", counter.pid, "counter", "--kill", "--no-regions")
    restored = lab.gpusnap("restore", "counter")
    counter.adopt()
    bad = counter.advance()
    must(bad == 0, f"{bad} words differ")
    counter.kill()
    lab.clean()
    return {"gib": COUNTER_GIB, "mismatches": bad, "checkpoint": saved, "restore": restored}


def counter_left_running(lab: Lab) -> Figures:
    """The default: it runs on; then it is killed and restored."""
    counter = start_counter(COUNTER_GIB, lab.folder)
    saved = lab.gpusnap("checkpoint", counter.pid, "counter")
    must(counter.alive, "the target runs on")
    running_bad = counter.advance()
    ahead = counter.read()[0]
    counter.kill()
    restored = lab.gpusnap("restore", "counter")
    counter.adopt()
    counter.await_true(lambda: counter.read()[0] != ahead, "it counted on")
    bad = counter.advance()
    must(running_bad == 0 and bad == 0, f"{running_bad} and {bad} words differ")
    verified = lab.gpusnap("verify", "counter")
    counter.kill()
    lab.clean()
    return {
        "gib": COUNTER_GIB,
        "mismatches": {"running_on": running_bad, "restored": bad},
        "checkpoint": saved,
        "restore": restored,
        "verify": verified,
    }


def counter_suspended(lab: Lab) -> Figures:
    """Suspend brings the GPU's memory to that of an idle one, resume goes on."""
    idle = used_mib()
    counter = start_counter(COUNTER_GIB, lab.folder)
    busy = used_mib()
    suspended = lab.gpusnap("suspend", counter.pid)
    at_once, rounds = used_mib(), counter.read()[0]
    time.sleep(5)
    settled = used_mib()
    # A driver that some process has open counts some MiB of its own.
    must(settled <= idle + 4, f"{settled} MiB in use while suspended, {idle} MiB when idle")
    must(counter.alive, "the suspended target lives")
    must(counter.read()[0] - rounds <= 1, "a suspended target does not compute")
    resumed = lab.gpusnap("resume", counter.pid)
    bad = counter.advance()
    must(bad == 0, f"{bad} words differ")
    counter.kill()
    return {
        "gib": COUNTER_GIB,
        "gpu_mib": {"idle": idle, "running": busy, "at_once": at_once, "suspended": settled},
        "mismatches": bad,
        "suspend": suspended,
        "resume": resumed,
    }


def tree_killed(lab: Lab) -> Figures:
    """A shell with two GPU programs, saved and restored as one tree; they share one GPU."""
    program, gib, idle = build("counter"), 2.0, used_mib()
    logs = [lab.folder / f"twin-{number}.log" for number in (1, 2)]
    script = " & ".join(f"{program} {gib} {log}" for log in logs) + " & wait"
    root = Counter.start(["sh", "-c", script], lab.folder / "tree.log")
    twins = [Counter(root.process, log) for log in logs]
    for twin in twins:
        twin.advance()
    saved = lab.gpusnap("checkpoint", root.pid, "tree", "--kill")
    await_true(lambda: used_mib() <= idle + 4, "the GPU is free")
    rounds = [twin.read()[0] for twin in twins]
    restored = lab.gpusnap("restore", "tree")
    root.adopt()
    for twin in twins:
        twin.process = root.process
    bad = [twin.advance() for twin in twins]
    must(bad == [0, 0], f"{bad} words differ")
    must(all(twin.read()[0] > old for twin, old in zip(twins, rounds, strict=True)), "both go on")
    root.kill()
    lab.clean()
    return {"gib_each": gib, "mismatches": bad, "checkpoint": saved, "restore": restored}


def _reference(lab: Lab) -> dict[int, set[str]]:
    if lab.reference is None:
        lab.reference = start_training(lab.folder, "reference", **TRAINING).finish()
    return lab.reference


def _compare(lab: Lab, losses: dict[int, set[str]]) -> Figures:
    reference = _reference(lab)
    differing = [step for step in reference if losses.get(step) != reference[step]]
    must(
        not differing, f"{len(differing)} losses differ, the first at step {min(differing or [0])}"
    )
    must(losses.keys() == reference.keys(), "some steps are missing")
    return {"steps": len(reference), "identical": len(reference), **TRAINING}


def training_killed(lab: Lab) -> Figures:
    """Losses of a killed and restored training, digit for digit."""
    _reference(lab)
    training = start_training(lab.folder, "killed", **TRAINING)
    training.await_true(lambda: training.steps() > 100, "it was under way")
    saved = lab.gpusnap("checkpoint", training.pid, "train", "--kill")
    steps = training.steps()
    must(not training.alive and not on_gpu(training.pid), "the training is gone")
    must(steps < TRAINING["steps"], "the checkpoint came before the end")
    restored = lab.gpusnap("restore", "train")
    training.adopt()
    compared = _compare(lab, training.finish())
    lab.clean()
    return compared | {"saved_at_step": steps, "checkpoint": saved, "restore": restored}


def training_left_running(lab: Lab) -> Figures:
    """The default: the training runs on; then it is killed and restored from the snapshot."""
    _reference(lab)
    training = start_training(lab.folder, "left", **TRAINING)
    training.await_true(lambda: training.steps() > 100, "it was under way")
    saved = lab.gpusnap("checkpoint", training.pid, "train")
    steps = training.steps()
    training.await_true(lambda: training.steps() > steps + 20, "it ran on")
    training.kill()
    restored = lab.gpusnap("restore", "train")
    training.adopt()
    compared = _compare(lab, training.finish())
    lab.clean()
    return compared | {"saved_at_step": steps, "checkpoint": saved, "restore": restored}


def managed_refused(lab: Lab) -> Figures:
    """Managed memory cannot be checkpointed: refused, and the program runs on."""
    log = lab.folder / "managed.log"
    counter = Counter.start([build("managed"), log], log)
    counter.advance()
    refused = lab.gpusnap("checkpoint", counter.pid, "managed", expect=16)
    must(counter.alive, "the refused target lives")
    counter.advance()
    must(not (lab.repository / "managed").exists(), "nothing was published")
    counter.kill()
    return refused


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _inherited(pid: int) -> dict[str, int]:
    """How many mappings and descriptors of the GPU's files a process holds."""
    maps = Path(f"/proc/{pid}/maps").read_text().count("/dev/nvidia")
    links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return {"mappings": maps, "descriptors": sum("/dev/nvidia" in link for link in links)}


def forked_children(lab: Lab) -> Figures:
    """A child that inherited the device: left running, then killed and restored with its parent."""
    log = lab.folder / "forked.log"
    counter = Counter.start([build("forked"), log], log)
    counter.advance()
    (child,) = _children(counter.pid)
    before = _inherited(child)
    must(before["mappings"] > 0 and before["descriptors"] > 0, "the child inherited the device")
    left = lab.gpusnap("checkpoint", counter.pid, "left")
    after = _inherited(child)
    must(after == {"mappings": 0, "descriptors": 0}, f"the child has let go of it, not {after}")
    counter.advance()
    saved = lab.gpusnap("checkpoint", counter.pid, "forked", "--kill")
    must(not counter.alive, "the target is gone")
    rounds = counter.read()[0]
    restored = lab.gpusnap("restore", "forked")
    counter.adopt()
    counter.advance()
    must(counter.read()[0] > rounds, "it counts on from where it was")
    must(_children(counter.pid) == [child], "its child came back")
    counter.kill()
    lab.clean()
    return {
        "inherited": before,
        "left_running": left,
        "checkpoint": saved,
        "restore": restored,
    }


def training_with_workers(lab: Lab) -> Figures:
    """Losses of a training with two DataLoader workers, killed and restored, digit for digit."""
    reference = start_training(lab.folder, "alone", **SMALL_TRAINING).finish()
    training = start_training(lab.folder, "workers", **SMALL_TRAINING, workers=2)
    training.await_true(lambda: training.steps() > SMALL_TRAINING["steps"] // 4, "a quarter")
    workers = _children(training.pid)
    inherited = [_inherited(pid) for pid in workers]
    saved = lab.gpusnap("checkpoint", training.pid, "train", "--kill")
    steps = training.steps()
    must(not training.alive and not on_gpu(training.pid), "the training is gone")
    must(steps < SMALL_TRAINING["steps"], "the checkpoint came before the end")
    restored = lab.gpusnap("restore", "train")
    training.adopt()
    losses = training.finish()
    must(losses == reference, "the losses are those of an uninterrupted run")
    lab.clean()
    by_criu = _workers_by_criu(lab)
    print("    errors of CRIU with cuda-checkpoint:", by_criu, flush=True)
    return {
        "steps": len(reference),
        "identical": len(reference),
        "saved_at_step": steps,
        "workers": len(workers),
        "inherited": inherited,
        "errors_of_criu_with_cuda_checkpoint": by_criu,
        "checkpoint": saved,
        "restore": restored,
    }


def _workers_by_criu(lab: Lab) -> list[str] | None:
    """What CRIU says of the same program when the driver's own tool took it off the GPU."""
    if lab.plugin is None:
        return None
    images = lab.images / "workers"
    images.mkdir()
    training = start_training(lab.folder, "by-criu", **SMALL_TRAINING, workers=2)
    training.await_true(lambda: training.steps() > 5, "it was under way")
    toggle = [f"{lab.plugin}/cuda-checkpoint", "--toggle", "--pid", str(training.pid)]
    options = ["--images-dir", images, "--log-file", "dump.log"]
    try:
        subprocess.run(toggle, check=True, timeout=COMMAND_S)
        criu(lab, "dump", "--tree", training.pid, *options)
    except (RuntimeError, subprocess.SubprocessError) as error:
        return [line for line in str(error).splitlines() if "rror" in line] or [str(error)]
    finally:
        training.kill()
        shutil.rmtree(images)
    return []


def plugin_engine(lab: Lab) -> Figures:
    """gpusnap with --engine criu-plugin: CRIU's own cuda plugin drives the GPU."""
    counter = start_counter(COUNTER_GIB, lab.folder)
    saved = lab.gpusnap("checkpoint", counter.pid, "counter", "--kill", "--engine", "criu-plugin")
    must(not counter.alive and not on_gpu(counter.pid), "the target is gone")
    restored = lab.gpusnap("restore", "counter")
    counter.adopt()
    bad = counter.advance()
    must(bad == 0, f"{bad} words differ")
    counter.kill()
    lab.clean()
    return {"gib": COUNTER_GIB, "mismatches": bad, "checkpoint": saved, "restore": restored}


def plain_criu(lab: Lab) -> Figures:
    """The same counter by `criu dump` and `criu restore` with the cuda plugin alone."""
    assert lab.plugin is not None
    images = lab.images / "plain"
    images.mkdir()
    counter = start_counter(COUNTER_GIB, lab.folder)
    options = ["--images-dir", images, "--libdir", lab.plugin, "-v4", "--timeout", "600"]
    dump = criu(lab, "dump", "--tree", counter.pid, *options, "--log-file", "dump.log")
    must(not on_gpu(counter.pid), "the target is gone from the GPU")
    await_true(lambda: not Path(f"/proc/{counter.pid}").exists(), "the PID is free")
    restore = criu(lab, "restore", "--restore-detached", *options, "--log-file", "restore.log")
    counter.adopt()
    bad = counter.advance()
    must(bad == 0, f"{bad} words differ")
    size = sum(file.stat().st_size for file in images.iterdir())
    counter.kill()
    shutil.rmtree(images)
    return {
        "gib": COUNTER_GIB,
        "mismatches": bad,
        "image_bytes": size,
        "checkpoint": {"total_us": dump},
        "restore": {"total_us": restore},
    }


def criu(lab: Lab, *arguments: object) -> int:
    path = f"{lab.plugin}:{os.environ['PATH']}"
    command = [*find_criu().command, *map(str, arguments)]
    begin = time.monotonic_ns()
    ran = subprocess.run(
        command,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    took = (time.monotonic_ns() - begin) // 1000
    if ran.returncode != 0:
        folder = Path(str(arguments[arguments.index("--images-dir") + 1]))
        log = folder / str(arguments[-1])
        tail = log.read_text(errors="replace")[-3000:] if log.exists() else ""
        raise RuntimeError(f"criu exited with {ran.returncode}: {ran.stderr[-500:]}\n{tail}")
    return took


def killed_helpers(lab: Lab) -> Figures:
    """gpusnap, CRIU and the worker killed during checkpoints: the target computes on."""
    counter = start_counter(1.0, lab.folder)
    outcomes: Figures = {}
    for point, victim in KILLS:
        report = lab.folder / "report"
        report.unlink(missing_ok=True)
        ran = subprocess.run(
            _fault(point, victim, report, counter.pid),
            env={**os.environ, "GPUSNAP_REPO": str(lab.repository)},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        hit = report.read_text() if report.exists() else "never"
        must(hit.isdigit(), f"the fault hit {victim} at {point}")
        lab.gpusnap("recover")
        must(counter.alive, f"the target survived a kill of {victim} at {point}")
        bad = counter.advance()
        must(bad == 0, f"{bad} words differ after a kill of {victim} at {point}")
        sentence = ran.stderr.strip().splitlines()[:1]
        outcomes[f"{victim} at {point}"] = {"exit": ran.returncode, "hit": hit, "said": sentence}
        lab.clean()
    counter.kill()
    return {"gib": 1.0, "mismatches": 0, "kills": outcomes}


def _fault(point: str, victim: str, report: Path, pid: int) -> list[str]:
    command = [sys.executable, "-m", "tests.e2e.faults", point, victim, str(report)]
    return [*command, "checkpoint", str(pid), "faulty"]


KILLS = (
    ("finished:lock", "gpusnap"),
    ("started:checkpoint+0.2", "gpusnap"),
    ("criu:pre-dump", "gpusnap"),
    ("criu:post-dump", "gpusnap"),
    ("started:restore+0.1", "gpusnap"),
    ("criu:pre-dump", "criu"),
    ("started:copy", "criu"),
    ("criu:post-dump", "criu"),
    ("finished:lock", "worker"),
    ("started:checkpoint+0.2", "worker"),
    ("criu:post-dump", "worker"),
    ("started:restore+0.1", "worker"),
)


def demo(lab: Lab) -> Figures:
    """`gpusnap demo` picks the GPU by itself, with neither nvcc nor torch."""
    ran = subprocess.run(
        [sys.executable, "-m", "gpusnap", "demo"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    must(ran.returncode == 0, ran.stdout + ran.stderr)
    return {"output": ran.stdout.splitlines()}


def listings(lab: Lab) -> Figures:
    """What the listing verbs say on this machine."""
    counter = start_counter(1.0, lab.folder)
    found: Figures = {verb: lab.gpusnap(verb) for verb in ("devices", "ps", "backends", "check")}
    found["check_pid"] = lab.gpusnap("check", counter.pid)
    counter.kill()
    return found


SCENARIOS: tuple[Callable[[Lab], Figures], ...] = (
    listings,
    managed_refused,
    forked_children,
    training_with_workers,
    counter_killed,
    counter_left_running,
    counter_by_criu,
    plain_criu,
    plugin_engine,
    counter_suspended,
    tree_killed,
    training_killed,
    training_left_running,
    killed_helpers,
    demo,
)
NEED_PLUGIN = {plain_criu, plugin_engine}


def machine() -> Figures:
    """Which machine, driver and tools the figures are of."""
    name, driver, memory = query("name,driver_version,memory.total")[0]
    return {
        "gpu": name,
        "driver": driver,
        "gpu_memory_mib": int(memory),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "criu": find_criu().version_text,
        "python": platform.python_version(),
        "thp": Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip(),
    }


def run(scenario: Callable[[Lab], Figures], lab: Lab) -> Figures:
    print(f"--- {scenario.__name__}", flush=True)
    begin = time.monotonic()
    record: Figures = {"scenario": scenario.__name__, "about": scenario.__doc__}
    try:
        if scenario in NEED_PLUGIN and lab.plugin is None:
            record |= {"outcome": "skipped", "reason": "no --cuda-plugin was named"}
        else:
            record |= {"outcome": "passed", "figures": scenario(lab)}
    except Exception as error:  # noqa: BLE001 - a failed scenario is a result
        record |= {"outcome": "failed", "error": f"{type(error).__name__}: {error}"}
        record["commands"] = list(lab.commands)
        traceback.print_exc()
        end_all()
        lab.clean()
    took = time.monotonic() - begin
    print(f"{record['outcome']:8}{took:7.1f} s  {scenario.__name__}", flush=True)
    print(json.dumps(record.get("figures"))[:3000], flush=True)
    return record | {"seconds": took}


def run_all(
    scenarios: Sequence[Callable[[Lab], Figures]],
    lab: Lab,
    output: Path,
    only: Collection[str],
    **about_machine: object,
) -> int:
    """Run all scenarios, or those named in that order; returns the exit code.

    What came of all is written down after each, and after every command of one that is unfinished:
    a time limit may end the script there.
    """
    names = [name for each in only for name in each.split(",")]
    known = {scenario.__name__: scenario for scenario in scenarios}
    must(set(names) <= set(known), f"the scenarios are {', '.join(known)}")
    date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    evidence: Figures = {"date": date, "machine": machine() | about_machine}
    records: list[Figures] = []

    def write(*unfinished: Figures) -> None:
        document = evidence | {"scenarios": [*records, *unfinished]}
        draft = output.with_suffix(".new")
        draft.write_text(json.dumps(document, indent=2) + "\n")
        draft.replace(output)

    for name in names or known:
        lab.commands.clear()
        record = {"scenario": name, "outcome": "unfinished", "commands": lab.commands}
        lab.told = lambda record=record: write(record)  # type: ignore[misc]
        lab.told()
        records.append(run(known[name], lab))
        write()
    return 0 if all(record["outcome"] != "failed" for record in records) else 1


@contextmanager
def folder_in(images: Path) -> Iterator[Path]:
    """A new folder, so that nothing is taken for this run's that an earlier one left."""
    images.mkdir(parents=True, exist_ok=True)
    name = tempfile.mkdtemp(dir=images)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--images", type=Path, default=Path("/dev/shm/gpusnap-evidence"))
    parser.add_argument("--cuda-plugin", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="SCENARIO")
    arguments = parser.parse_args()
    with folder_in(arguments.images) as images, supervised():
        lab = Lab(images, arguments.cuda_plugin)
        return run_all(SCENARIOS, lab, arguments.output, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
