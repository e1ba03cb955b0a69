"""GPU programs saved and restored by gpusnap, by CRIU alone and by CRIU with its cuda plugin.

    python tests/gpu/comparison.py --output FILE --cuda-plugin FOLDER [--rounds N] [--gib G]
        [--huge-pages MODE] [--images FOLDER] [--disk FOLDER] [--part PART]...

Needs what evidence.py needs. In *CRIU alone* the driver's ``cuda-checkpoint`` takes the program
off the GPU, then ``criu dump`` and ``criu restore`` run without any plugin: what they take is
CRIU's share. gpusnap's share is all that it does from its first effect on but for the driver's
steps. In both the end of the program counts, which gives back its memory then; ``saved`` is the
share of a checkpoint up to there, when the last image or the snapshot is complete: CRIU writes its
inventory last, and the file tells when. Who goes first changes from round to round; transparent
huge pages are for everybody what the machine has, or ``--huge-pages``. Images are on a tmpfs of the
script's own, for the last round on ``--disk``, where a restore reads them from the disk and not
from memory; to both, a program is also saved that runs on, for the time it stands still. ``/run``,
where CRIU keeps what it has found out about the kernel, is a tmpfs too, as on most machines. Every
program's data is checked. Writes one JSON file, anew with every figure; times in microseconds. What
fails is noted under ``failures``, and the next is measured.
"""

import argparse
import datetime as dt
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpusnap.room import file_system
from tests.gpu.evidence import Figures, Lab, criu, machine, must
from tests.gpu.targets import (
    Counter,
    Target,
    Training,
    await_true,
    end_all,
    start_counter,
    start_training,
    supervised,
)

DRIVER = {"preflight_us", "lock_us", "checkpoint_us", "restore_us", "unlock_us", "compare_us"}
"""gpusnap's steps that are no share of CRIU's: the driver's, and looking before doing."""

TRAINING = {"steps": 100_000, "layers": 12, "width": 1024}
CRIU_OPTIONS = ("--timeout", "600", "--file-locks", "--ext-unix-sk", "--link-remap")
"""For CRIU by itself: what gpusnap would choose where a program asks for it."""
FILLED = 64 << 20
"""Bytes that a thread fills at once."""
RUN = Path("/run")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

PARTS = ("counter", "training", "left_running", "disk")

Start = Callable[[Path], Target]
Way = Callable[[Lab, Target], Figures]


def share(figures: Figures) -> int:
    """Microseconds of a gpusnap command but for the driver's steps."""
    return int(str(figures["total_us"])) - sum(_steps(figures, DRIVER))


def saved(figures: Figures) -> int:
    """Microseconds of a checkpoint's steps but the driver's: they end when it is published."""
    return sum(_steps(figures, figures.keys() - DRIVER - {"total_us", "frozen_us", "wall_us"}))


def _steps(figures: Figures, names: Collection[str]) -> Iterator[int]:
    return (int(str(figures[name])) for name in names if name.endswith("_us") and name in figures)


def by_gpusnap(lab: Lab, target: Target, *options: str) -> Figures:
    done = lab.gpusnap("checkpoint", target.pid, "snapshot", "--kill", *options)
    stored = stored_bytes(lab.repository)
    written = forget(lab.repository)
    restored = lab.gpusnap("restore", "snapshot", *options)
    target.adopt()
    return {
        "checkpoint": done | {"share_us": share(done), "saved_us": saved(done)},
        "restore": restored | {"share_us": share(restored)},
        "stored_bytes": stored,
        "written_back_seconds": written,
    }


def stored_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def forget(folder: Path) -> float | None:
    """Have what is on a disk written and no longer kept in memory; the seconds of that."""
    if file_system(folder) == "tmpfs":
        return None
    begin = time.monotonic()
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return time.monotonic() - begin


def by_gpusnap_thp(lab: Lab, target: Target) -> Figures:
    """With huge pages for the device's copy, whatever the machine has."""
    return by_gpusnap(lab, target, "--thp")


def _toggle(lab: Lab, target: Target) -> int:
    begin = time.monotonic_ns()
    program = f"{lab.plugin}/cuda-checkpoint"
    subprocess.run([program, "--toggle", "--pid", str(target.pid)], check=True, timeout=120)
    return (time.monotonic_ns() - begin) // 1000


def by_criu_alone(lab: Lab, target: Target) -> Figures:
    taken = _toggle(lab, target)
    figures = _dump_and_restore(lab, target, [])
    given = _toggle(lab, target)
    for command, driver in (("checkpoint", taken), ("restore", given)):
        own = _times(figures, command)
        figures[command] = own | {"driver_us": driver, "total_us": driver + own["share_us"]}
    return figures


def by_criu_plugin(lab: Lab, target: Target) -> Figures:
    figures = _dump_and_restore(lab, target, ["--libdir", lab.plugin])
    totals = {key: _times(figures, key)["share_us"] for key in ("checkpoint", "restore")}
    return figures | {key: {"total_us": us} for key, us in totals.items()}


def _dump_and_restore(lab: Lab, target: Target, plugin: list[object]) -> Figures:
    images = lab.images / "criu"
    images.mkdir()
    try:
        options = ["--images-dir", images, *plugin, *CRIU_OPTIONS, "--log-file"]
        begin = time.time_ns()
        dump = criu(lab, "dump", "--tree", target.pid, *options, "dump.log")
        complete = (images / "inventory.img").stat().st_mtime_ns
        await_true(lambda: not Path(f"/proc/{target.pid}").exists(), "the PID is free")
        stored, written = stored_bytes(images), forget(images)
        restore = criu(lab, "restore", "--restore-detached", *options, "restore.log")
        target.adopt()
    finally:
        shutil.rmtree(images)
    return {
        "checkpoint": {"share_us": dump, "saved_us": (complete - begin) // 1000},
        "restore": {"share_us": restore},
        "stored_bytes": stored,
        "written_back_seconds": written,
    }


WAYS: dict[str, Way] = {
    "gpusnap": by_gpusnap,
    "criu": by_criu_alone,
    "criu_plugin": by_criu_plugin,
    "gpusnap_thp": by_gpusnap_thp,
}
ALWAYS = ("gpusnap", "criu")
"""Those of every round; the others are for the first rounds only."""


def trip(lab: Lab, way: str, start: Start) -> Figures:
    """A program is started, saved, restored, checked and ended."""
    target = start(lab.folder)
    try:
        figures = WAYS[way](lab, target)
        if isinstance(target, Counter):
            bad = target.advance()
            must(bad == 0, f"{bad} words differ")
            figures["mismatches"] = bad
        if isinstance(target, Training):
            steps = target.steps()
            target.await_true(lambda: target.steps() > steps + 5, "it went on")
    finally:
        target.kill()
        lab.clean()
    return figures


def left_running(lab: Lab, start: Start) -> Figures:
    """How long a program that is to run on stands still for its checkpoint."""
    target = start(lab.folder)
    try:
        saved = lab.gpusnap("checkpoint", target.pid, "snapshot")
        assert isinstance(target, Counter)
        bad = target.advance()
        must(bad == 0, f"{bad} words differ")
        verified = lab.gpusnap("verify", "snapshot")
    finally:
        target.kill()
        lab.clean()
    return {"checkpoint": saved, "verify": verified, "mismatches": bad}


def order(count: int, full: int) -> Iterator[tuple[int, str]]:
    """The number of each round and its ways, first those of every round."""
    for number in range(count):
        ways = tuple(WAYS) if number < full else ALWAYS
        for way in ways[:: -1 if number % 2 else 1]:
            yield number, way


def _seconds(figures: Figures, command: str) -> Figures:
    return {name.removesuffix("_us"): us / 1e6 for name, us in _times(figures, command).items()}


def _times(figures: Figures, command: str) -> dict[str, int]:
    found = figures[command]
    assert isinstance(found, dict)
    return {name: int(us) for name, us in found.items() if name.endswith("_us") and us is not None}


def ratios(found: list[dict[str, Figures]], of: str) -> Figures:
    """Each way's time over gpusnap's, round by round."""
    table: Figures = {}
    for command in ("checkpoint", "restore"):
        for way in WAYS.keys() - {"gpusnap"}:
            values = []
            for each in found:
                both = way in each and "gpusnap" in each
                theirs = _times(each[way], command).get(of) if both else None
                ours = _times(each["gpusnap"], command).get(of) if both else None
                if theirs is not None and ours is not None:
                    values.append(theirs / ours)
            if values:
                low, middle, high = min(values), statistics.median(values), max(values)
                table[f"{command}_{way}"] = {"min": low, "median": middle, "max": high}
    return table


def first_touch(gib: int) -> Figures:
    """GB/s of filling so much memory by all processors: never used before, and once more.

    A virtual machine gets its memory from its host when it touches it first, which takes longer
    than what is measured here. With as much as the rounds need, none of them pays for that.
    """
    found: Figures = {"gib": gib}
    for name in ("never_used", "used_before"):
        with mmap.mmap(-1, gib << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            begin = time.perf_counter()
            with ThreadPoolExecutor(os.cpu_count()) as pool, memoryview(memory) as view:
                list(pool.map(partial(_fill, view), range(0, gib << 30, FILLED)))
            found[name] = (gib << 30) / (time.perf_counter() - begin) / 1e9
    print("first touch", found, flush=True)
    return found


def _fill(view: memoryview, offset: int) -> None:
    with Path("/dev/zero").open("rb", buffering=0) as zeros, view[offset : offset + FILLED] as part:
        zeros.readinto(part)


@contextmanager
def tmpfs(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=90g", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        end_all()
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def kernel_known() -> Iterator[None]:
    """Let every CRIU find again what one has found out about the kernel.

    It keeps that in ``/run`` where that is in memory, as on all machines booted by systemd. In a
    container it may not be, and each run of CRIU takes 30 ms more, of whoever it is a part.
    """
    if file_system(RUN) == "tmpfs":
        yield
        return
    with tmpfs(RUN):
        yield


def huge_pages_mode() -> str:
    return HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]


@contextmanager
def huge_pages(mode: str) -> Iterator[None]:
    before = huge_pages_mode()
    HUGE_PAGES.write_text(mode)
    try:
        yield
    finally:
        HUGE_PAGES.write_text(before)


def training(folder: Path) -> Target:
    started = start_training(folder, "comparison", **TRAINING)
    started.await_true(lambda: started.steps() > 20, "it was under way")
    return started


class Report:
    """What was found, written anew with every figure."""

    def __init__(self, output: Path, plugin: Path, about: Figures) -> None:
        self._output = output
        self._plugin = plugin
        self._found = about
        self._failures: list[Figures] = []

    def measure(self, name: str, folder: Path, start: Start, count: int, full: int) -> None:
        lab = Lab(folder, self._plugin)
        done: list[dict[str, Figures]] = [{} for _ in range(count)]
        of_all: dict[str, Figures] = {}
        for number, way in order(count, full):
            with self._noted(f"{name}, round {number}, {way}"):
                figures = done[number][way] = trip(lab, way, start)
                of_all = {of: ratios(done, of) for of in ("share_us", "saved_us", "total_us")}
                self._keep({name: [each for each in done if each], f"{name}_ratios": of_all})
                told = {key: _seconds(figures, key) for key in ("checkpoint", "restore")}
                print(f"{name}, round {number} {way:12}", json.dumps(told), flush=True)
        print(f"{name} ratios", json.dumps(of_all), flush=True)

    def stand_still(self, name: str, folder: Path, start: Start) -> None:
        with self._noted(name):
            figures = left_running(Lab(folder, self._plugin), start)
            self._keep({name: figures})
            print(name, json.dumps(figures), flush=True)

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """Note a failure, end what it left, and go on."""
        begin = time.monotonic()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - what fails is a result
            traceback.print_exc()
            end_all()
            self._failures.append({"what": what, "error": f"{type(error).__name__}: {error}"})
            self._keep({"failures": self._failures})
        print(f"{time.monotonic() - begin:6.1f} s for {what}", flush=True)

    def _keep(self, figures: Figures) -> None:
        self._found |= figures
        draft = self._output.with_suffix(".new")
        draft.write_text(json.dumps(self._found, indent=2) + "\n")
        draft.replace(self._output)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cuda-plugin", type=Path, required=True)
    parser.add_argument("--huge-pages", choices=("always", "madvise", "never"))
    parser.add_argument("--images", type=Path, default=Path("/tmp/gpusnap-comparison"))
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--gib", type=float, default=16.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--full-rounds", type=int, default=2, help="rounds of all ways")
    parser.add_argument("--training-rounds", type=int, default=2)
    parser.add_argument("--part", choices=PARTS, action="append", help="not all; repeatable")
    parser.add_argument(
        "--warm", type=int, default=96, help="GiB of memory touched first, 0 for none"
    )
    return parser.parse_args()


def main() -> None:
    asked = options()
    mode = asked.huge_pages or huge_pages_mode()
    about: Figures = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "gib": asked.gib,
        "huge_pages": mode,
    }
    if asked.warm:
        about["first_touch"] = first_touch(asked.warm)
    report = Report(asked.output, asked.cuda_plugin, about)
    parts = asked.part or PARTS

    def counter(folder: Path) -> Target:
        return start_counter(asked.gib, folder)

    with (
        huge_pages(mode),
        kernel_known(),
        tmpfs(asked.images) as images,
        tempfile.TemporaryDirectory(dir=asked.disk, prefix="gpusnap-") as disk,
    ):
        if "counter" in parts:
            report.measure("counter", images, counter, asked.rounds, asked.full_rounds)
        if "training" in parts:
            report.measure("training", images, training, asked.training_rounds, asked.full_rounds)
        if "left_running" in parts:
            report.stand_still("left_running", images, counter)
            report.stand_still("left_running_on_disk", Path(disk), counter)
        if "disk" in parts:
            report.measure("counter_on_disk", Path(disk), counter, 1, 0)


if __name__ == "__main__":
    with supervised():
        main()
