"""With --thp the machine's switch is set while memory is filled, and only then."""

import fcntl
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from gpusnap.thp import SWITCH
from tests.e2e.jobs import Job, Site, await_true, start_detached
from tests.e2e.test_faults import strike
from tests.e2e.test_regions import rollup
from tests.switches import real_switch

WATCHED = """
import sys
import gpusnap
from gpusnap import thp
from gpusnap.events import PhaseFinished, PhaseStarted
from gpusnap.hookspecs import hookimpl
from gpusnap.plugins import default_plugins

class Watched(thp.Switch):
    def write(self, value):
        super().write(value)
        print(value, flush=True)

class Listener:
    @hookimpl
    def gpusnap_event(self, event):
        if isinstance(event, PhaseStarted):
            print("started", event.phase.value, flush=True)
        if isinstance(event, PhaseFinished):
            print("finished", event.phase.value, flush=True)

thp.SWITCH = Watched(thp.SWITCH.path)
default_plugins().register(Listener(), "listener")
pid = int(sys.argv[1])
gpusnap.suspend(pid, thp=True)
gpusnap.resume(pid)
snapshot = gpusnap.create_checkpoint(pid, "one", thp=True, leave_running=False)
gpusnap.restore_checkpoint(snapshot.path, thp=True)
"""


WITHOUT = """
import sys
from pathlib import Path
from gpusnap import thp
from gpusnap.cli import main
thp.SWITCH = thp.Switch(Path("/nowhere/enabled"))
main()
"""

PLAIN = """
import mmap, pathlib, sys, time
memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(bytes([1]) * (32 << 20))
pathlib.Path(sys.argv[1]).with_suffix(".ready").touch()
time.sleep(3600)
"""


@pytest.fixture(autouse=True)
def switch() -> Iterator[None]:
    if not os.access(SWITCH.path, os.W_OK):
        pytest.skip(f"{SWITCH.path} cannot be written to here")
    with real_switch(fcntl.LOCK_EX):
        before = SWITCH.read()
        SWITCH.write("madvise")
        yield
        SWITCH.write(before)


def test_set_while_memory_is_filled(site: Site, job: Job) -> None:
    program = site.folder / "watched.py"
    program.write_text(WATCHED)
    ran = site.run(program, job.pid)
    assert ran.returncode == 0, ran.stderr
    job.adopt()
    said = ran.stdout
    suspend_and_checkpoint = "started checkpoint\nalways\nmadvise\nfinished checkpoint\n"
    assert said.count(suspend_and_checkpoint) == 2
    restore = said[said.index("started criu-restore") :]
    assert restore.startswith("started criu-restore\nalways\n")
    assert restore.index("finished fill\n") < restore.index("madvise\n")
    assert said.count("always") == said.count("madvise") == 3
    assert SWITCH.read() == "madvise"


def test_restored_memory_lies_in_huge_pages(site: Site) -> None:
    program, pid_file = site.folder / "plain.py", site.folder / "plain.pid"
    program.write_text(PLAIN)
    start_detached([sys.executable, str(program), str(program)], pid_file, site.environment)
    await_true(program.with_suffix(".ready").exists, "the memory is filled")
    pid = int(pid_file.read_text())
    try:
        before = rollup(pid)["AnonHugePages:"]
        assert site.gpusnap("checkpoint", pid, "one", "--kill").returncode == 0
        restored = site.gpusnap("restore", "one", "--thp")
        assert restored.returncode == 0, restored.stderr
        assert rollup(pid)["AnonHugePages:"] > before, "as many as the kernel has free"
    finally:
        os.kill(pid, signal.SIGKILL)
    assert SWITCH.read() == "madvise"


def test_put_back_after_a_kill_and_after_a_failure(site: Site, job: Job) -> None:
    assert site.gpusnap("checkpoint", job.pid, "one", "--kill").returncode == 0
    code, _, _ = strike(site, "criu:post-restore", "gpusnap", "restore", "one", "--thp")
    assert code == -9
    assert SWITCH.read() == "always"
    recovered = site.gpusnap("recover")
    assert recovered.returncode == 0, recovered.stderr
    assert "leftover recovered: huge pages are switched to madvise" in recovered.stdout
    assert SWITCH.read() == "madvise"
    code, errors, _ = strike(site, "criu:post-restore", "criu", "restore", "one", "--thp")
    assert code == 18, errors
    assert SWITCH.read() == "madvise"


def test_a_machine_without(site: Site, job: Job) -> None:
    program = site.folder / "without.py"
    program.write_text(WITHOUT)
    for verb in (("checkpoint", "--dry-run"), ("suspend",)):
        ran = site.run(program, *verb, job.pid, "--thp")
        assert ran.returncode == 3, ran.stdout + ran.stderr
        assert "[huge-pages-unavailable]" in ran.stdout + ran.stderr
    resumed = site.gpusnap("resume", job.pid)
    assert resumed.returncode == 0, resumed.stderr
    assert job.computes()
