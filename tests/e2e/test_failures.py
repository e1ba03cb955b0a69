"""What goes wrong with the device, the disk or the machine: told plainly, and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import gpusnap
from gpusnap.datapath import Saver
from gpusnap.errors import GpusnapError
from gpusnap.target import identity
from gpusnap.testing import SIM_VARIABLE, fail
from gpusnap.testing.machine import MachineDescription, read_struct, write_struct
from tests.e2e.jobs import Job, Site, await_true, start_detached
from tests.pids import Stranger

IN_A_CHECKPOINT = [
    ("lock", "busy", 17),
    ("lock", "hang", 17),
    ("lock", "lost-answer", 17),
    ("checkpoint", "unsupported", 16),
    ("checkpoint", "out-of-memory", 16),
    ("checkpoint", "hang", 17),
    ("checkpoint", "lost-answer", 17),
    ("restore", "lost-answer", 17),
    ("unlock", "lost-answer", 0),  # all was done: the states say so
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """One target for all failures of the device: it has to survive every one of them."""
    site = Site.make(tmp_path_factory.mktemp("site"))
    job = Job.start(site, steps=1_000_000)
    yield job
    job.kill()


def describe(site: Site, **changes: object) -> None:
    """Change what the simulated machine is."""
    path = site.machine / "devices.json"
    description = read_struct(path, MachineDescription)
    assert description is not None
    write_struct(path, msgspec.structs.replace(description, **changes))


@contextmanager
def hasty(site: Site) -> Iterator[None]:
    """Have driver calls given up soon."""
    before = read_struct(site.machine / "devices.json", MachineDescription)
    describe(site, call_timeout_us=3_000_000)
    yield
    write_struct(site.machine / "devices.json", before)


def refused(ran: "subprocess.CompletedProcess[str]", code: int, words: str) -> None:
    assert ran.returncode == code, ran.stdout + ran.stderr
    first = ran.stderr.splitlines()[0]
    assert first.startswith("gpusnap: ")
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(("call", "kind", "code"), IN_A_CHECKPOINT)
def test_the_driver_fails(running: Job, call: str, kind: str, code: int) -> None:
    site = running.site
    fail(site.machine, call, kind)
    name = f"{call}-{kind}"
    options = ("--lock-timeout", "500ms") if call == "lock" else ()
    with hasty(site):
        ran = site.gpusnap("checkpoint", running.pid, name, *options)
    if code:
        refused(ran, code, "gpusnap: ")
    assert ran.returncode == code
    assert site.gpusnap("recover").returncode == 0
    assert running.alive
    assert running.computes()
    failures = list((site.machine / "failures").glob("*.json"))
    assert failures == [], "the failure never happened"
    # Until the dump nothing is there to publish; after it, the dump is not thrown away.
    assert (site.repository / name).exists() == (call in {"restore", "unlock"})


def test_a_disk_that_hangs(running: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target computes before the threads that write are waited for."""
    for name in (SIM_VARIABLE, "GPUSNAP_REPO", "GPUSNAP_STATE_DIR"):
        monkeypatch.setenv(name, running.site.environment[name])
    computed: list[bool] = []
    abort = Saver.abort

    def fail_to_copy(saver: Saver, *_arguments: object) -> None:
        raise GpusnapError("The disk does not answer")

    def hang(saver: Saver) -> None:
        computed.append(running.computes())
        abort(saver)

    monkeypatch.setattr(Saver, "wait_copied", fail_to_copy)
    monkeypatch.setattr(Saver, "abort", hang)
    with pytest.raises(GpusnapError, match="The disk does not answer"):
        gpusnap.create_checkpoint(running.pid, "hanging")
    assert computed == [True]


def test_devices_that_do_not_come_back(running: Job) -> None:
    """The dump is complete, but the device refuses for good: the snapshot is what is left."""
    site = running.site
    fail(site.machine, "restore", "out-of-memory", times=100)
    ran = site.gpusnap("checkpoint", running.pid, "stranded")
    refused(ran, 16, "Run gpusnap recover")
    assert "The snapshot" in ran.stderr
    assert "is complete" in ran.stderr
    assert site.gpusnap("verify", "stranded").returncode == 0
    recovered = site.gpusnap("recover")
    assert recovered.returncode == 1, recovered.stdout
    for path in (site.machine / "failures").glob("*.json"):
        path.unlink()
    recovered = site.gpusnap("recover")
    assert recovered.returncode == 0, recovered.stdout
    assert running.computes()


def test_suspend_that_fails(running: Job) -> None:
    fail(running.site.machine, "checkpoint", "unsupported")
    refused(running.site.gpusnap("suspend", running.pid), 16, "gpusnap: ")
    assert running.computes()


def test_resume_of_what_is_not_suspended(running: Job) -> None:
    refused(running.site.gpusnap("resume", running.pid), 16, "is not suspended")
    assert running.computes()


def test_suspended_twice_and_checkpointed_while_suspended(running: Job) -> None:
    site = running.site
    assert site.gpusnap("suspend", running.pid).returncode == 0
    for verb in ("suspend", "checkpoint"):
        ran = site.gpusnap(verb, running.pid)
        assert ran.returncode in {11, 16}, ran.stderr
        assert "gpusnap resume" in ran.stderr
    assert site.gpusnap("resume", running.pid).returncode == 0
    assert running.computes()


def test_two_checkpoints_at_once(running: Job) -> None:
    site = running.site
    # The first one stands still in its lock, and is held there until the second was refused.
    fail(site.machine, "lock", "hang")
    with hasty(site):
        first = subprocess.Popen(
            [sys.executable, "-m", "gpusnap", "checkpoint", str(running.pid), "first"],
            env=site.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        failures = site.machine / "failures"
        await_true(lambda: list(failures.glob("*.json")) == [], "the first calls the driver")
        first.send_signal(signal.SIGSTOP)
        second = site.gpusnap("checkpoint", running.pid, "second")
        first.send_signal(signal.SIGCONT)
        refused(second, 11, f"Another gpusnap (PID {first.pid}) runs a checkpoint")
        first.communicate(timeout=60)
    assert running.computes()


def test_a_debugger_on_the_target(running: Job) -> None:
    script = (
        "import ctypes, sys, time, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"assert libc.ptrace(0x4206, {running.pid}, 0, 0) == 0, ctypes.get_errno()\n"
        "print('seized', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == b"seized\n"
        ran = running.site.gpusnap("checkpoint", running.pid)
        tracer.kill()
    refused(ran, 16, f"is being traced by process {tracer.pid}")
    assert running.computes()


def test_a_full_disk(running: Job, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], check=True)
    try:
        ran = running.site.gpusnap("checkpoint", running.pid, tmp_path / "full")
        refused(ran, 1, "bytes free")
        forced = running.site.gpusnap(
            "checkpoint", running.pid, tmp_path / "full", "--force", "repository-space"
        )
        # It is full for gpusnap and for CRIU, which write at the same time
        told = {1: "the disk is full", 18: "no space left"}
        assert told[forced.returncode] in forced.stderr, forced.stderr
        assert running.computes()
        assert not (tmp_path / "full").exists()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_read_only_repository(running: Job, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", tmp_path], check=True)
    try:
        ran = running.site.gpusnap("checkpoint", running.pid, tmp_path / "one")
        refused(ran, ran.returncode, "ead-only")
        assert ran.returncode in {1, 15}
        assert running.computes()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_name_that_exists(running: Job) -> None:
    site = running.site
    assert site.gpusnap("checkpoint", running.pid, "twice").returncode == 0
    refused(site.gpusnap("checkpoint", running.pid, "twice"), 2, "exists")
    assert site.gpusnap("verify", "twice").returncode == 0
    assert running.computes()


@pytest.mark.parametrize("name", ["..", "a\nb", "latest", ".hidden", "x" * 300, "a/.."])
def test_a_bad_name(running: Job, name: str) -> None:
    refused(running.site.gpusnap("checkpoint", running.pid, name), 2, "gpusnap: ")
    assert running.computes()


def test_a_target_killed_in_the_middle(site: Site) -> None:
    job = Job.start(site)
    fail(site.machine, "checkpoint", "hang")
    describe(site, call_timeout_us=3_000_000)
    with subprocess.Popen(
        [sys.executable, "-m", "gpusnap", "checkpoint", str(job.pid), "dead"],
        env=site.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        await_true(
            lambda: list((site.machine / "failures").glob("*.json")) == [], "the checkpoint hangs"
        )
        os.kill(job.pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in {16, 17}, errors
    assert "Traceback" not in errors
    assert site.gpusnap("recover").returncode == 0
    assert list((site.folder / "state").glob("*.json")) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A target that exists as a snapshot only."""
    site = Site.make(tmp_path_factory.mktemp("site"), devices=2)
    job = Job.start(site, steps=1_000_000)
    assert site.gpusnap("checkpoint", job.pid, "one", "--kill").returncode == 0
    await_true(lambda: identity(job.pid) is None, "init has reaped it")
    yield job
    if identity(job.pid) is not None:
        job.adopt()
        job.kill()


def nothing_started(job: Job) -> None:
    assert identity(job.pid) is None
    assert job.site.gpusnap("verify", "one").returncode == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "Other 2"}, "device-model"),
        ({"memory": 1 << 20}, "device-memory"),
    ],
)
def test_another_device(saved: Job, change: dict[str, object], words: str) -> None:
    site = saved.site
    path = site.machine / "devices.json"
    before = path.read_bytes()
    description = read_struct(path, MachineDescription)
    assert description is not None
    changed = tuple(msgspec.structs.replace(each, **change) for each in description.devices)
    describe(site, devices=changed)
    refused(site.gpusnap("restore", "one"), 14, words)
    path.write_bytes(before)
    nothing_started(saved)


def test_fewer_devices(saved: Job) -> None:
    path = saved.site.machine / "devices.json"
    before = path.read_bytes()
    description = read_struct(path, MachineDescription)
    assert description is not None
    describe(saved.site, devices=description.devices[:1])
    refused(saved.site.gpusnap("restore", "one"), 14, "device-count")
    path.write_bytes(before)
    nothing_started(saved)


def test_another_driver(saved: Job) -> None:
    path = saved.site.machine / "devices.json"
    before = path.read_bytes()
    describe(saved.site, driver_version="2.0")
    refused(saved.site.gpusnap("restore", "one"), 14, "driver-version")
    path.write_bytes(before)
    nothing_started(saved)


def test_devices_in_use(saved: Job) -> None:
    site = saved.site
    description = read_struct(site.machine / "devices.json", MachineDescription)
    assert description is not None
    hog = Job.start(site, "hog", memory=description.devices[0].memory - (1 << 19) // 4096 * 4096)
    refused(site.gpusnap("restore", "one"), 14, "device-memory-free")
    hog.kill()
    nothing_started(saved)


def test_no_backend_at_restore(saved: Job) -> None:
    refused(saved.site.gpusnap("restore", "one", GPUSNAP_SIM_DIR=""), 13, "needs backend simulated")
    nothing_started(saved)


@pytest.mark.parametrize("call", ["restore", "unlock"])
def test_the_device_refuses_at_restore(saved: Job, call: str) -> None:
    site = saved.site
    kind = "out-of-memory" if call == "restore" else "lost-answer"
    fail(site.machine, call, kind)
    with hasty(site):
        ran = site.gpusnap("restore", "one")
    refused(ran, 16 if call == "restore" else 17, "The snapshot is unchanged")
    await_true(lambda: identity(saved.pid) is None, "no half-restored process remains")
    nothing_started(saved)


@pytest.mark.parametrize("how", ["bit", "cut", "gone", "extra", "manifest"])
def test_a_damaged_snapshot(saved: Job, how: str) -> None:
    site = saved.site
    copy = site.repository / "copy"
    subprocess.run(["rm", "-rf", copy], check=True)
    subprocess.run(["cp", "-a", site.repository / "one", copy], check=True)
    pages = max((copy / "criu").iterdir(), key=lambda file: file.stat().st_size)
    match how:
        case "bit":
            data = bytearray(pages.read_bytes())
            data[len(data) // 2] ^= 0x10
            pages.write_bytes(data)
        case "cut":
            os.truncate(pages, pages.stat().st_size - 1)
        case "gone":
            pages.unlink()
        case "extra":
            (copy / "criu" / "extra.img").write_bytes(b"x")
        case "manifest":
            manifest = copy / "manifest.json"
            manifest.write_bytes(manifest.read_bytes().replace(b'"frozen_us"', b'"frozen_uS"'))
    refused(site.gpusnap("restore", "copy"), 12, "gpusnap: ")
    verified = site.gpusnap("verify", "copy")
    assert verified.returncode == 12
    nothing_started(saved)


def test_a_taken_pid(saved: Job) -> None:
    site = saved.site
    assert site.gpusnap("restore", "one").returncode == 0
    saved.adopt()
    before = saved.done
    refused(site.gpusnap("restore", "one"), 14, f"PID {saved.pid} is taken by")
    await_true(lambda: saved.done > before, "the holder of the PID was left alone")
    saved.kill()


def test_a_pid_taken_by_a_zombie(saved: Job) -> None:
    with Stranger(saved.pid, "true") as stranger:
        stranger.await_zombie()
        ran = saved.site.gpusnap("restore", "one", "--dry-run", "--json")
    assert ran.returncode == 14
    plan = json.loads(ran.stdout)
    taken = [finding for finding in plan["findings"] if finding["code"] == "pid-taken"]
    assert "is held by a zombie" in taken[0]["text"]
    assert taken[0]["cure"]


def start_nap(site: Site, name: str) -> tuple[Path, int]:
    program = site.folder / name
    subprocess.run(["cp", "/bin/sleep", program], check=True)
    pid_file = site.folder / "nap.pid"
    start_detached([str(program), "600"], pid_file, site.environment)
    pid = int(pid_file.read_text())
    await_true(lambda: os.readlink(f"/proc/{pid}/exe") == str(program), "the program runs")
    return program, pid


def test_a_program_that_is_gone(site: Site) -> None:
    program, pid = start_nap(site, "nap")
    saved = site.gpusnap("checkpoint", pid, "nap", "--kill")
    assert saved.returncode == 0, saved.stderr
    program.unlink()
    refused(site.gpusnap("restore", "nap"), 14, f"{program}, which does not exist here")


def test_resume_where_the_device_is_full(site: Site) -> None:
    """Told before the driver is asked: one that runs out of memory may be stuck for good."""
    description = read_struct(site.machine / "devices.json", MachineDescription)
    assert description is not None
    job = Job.start(site)
    assert site.gpusnap("suspend", job.pid).returncode == 0
    hog = Job.start(site, "hog", memory=description.devices[0].memory - (1 << 19))
    refused(site.gpusnap("resume", job.pid), 16, "device-memory-free")
    hog.kill()
    assert site.gpusnap("resume", job.pid).returncode == 0
    assert job.computes()
    job.kill()


def test_a_program_that_was_replaced_while_it_ran(site: Site) -> None:
    """As by an upgrade: CRIU carries the old one in its images."""
    program, pid = start_nap(site, "nap")
    program.unlink()
    saved = site.gpusnap("checkpoint", pid, "nap", "--kill")
    assert saved.returncode == 0, saved.stderr
    await_true(lambda: identity(pid) is None, "the PID is free")
    restored = site.gpusnap("restore", "nap")
    assert restored.returncode == 0, restored.stderr
    os.kill(pid, signal.SIGKILL)


def test_a_path_that_is_no_text(site: Site) -> None:
    _, pid = start_nap(site, "n\udce9p")
    saved = site.gpusnap("checkpoint", pid, "nap", "--kill")
    assert saved.returncode == 0, saved.stderr
    await_true(lambda: identity(pid) is None, "the PID is free")
    restored = site.gpusnap("restore", "nap")
    assert restored.returncode == 0, restored.stderr
    os.kill(pid, signal.SIGKILL)
