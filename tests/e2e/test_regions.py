"""Memory saved past CRIU comes back byte for byte, whatever kind of mapping it is in."""

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpusnap.criu import find_criu
from gpusnap.datapath import Filler
from gpusnap.repository.parts import PART
from gpusnap.target import find_target, identity
from gpusnap.testing.program import reference_log
from tests.e2e.family import SIZE
from tests.e2e.jobs import SLOW_US, STEPS, Job, Site, await_true, start_detached
from tests.pids import kill
from tests.switches import real_switch

PROGRAM = """
import ctypes, hashlib, mmap, os, random, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
MIB = 1 << 20
SIZE = 24 * MIB
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
for call in (libc.mprotect, libc.madvise):
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
noise = random.Random(7).randbytes(SIZE)

def mapping():
    address = libc.mmap(None, SIZE + 4 * MIB, 3, 0x22, -1, 0)
    return (address + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)

def fill(address, data, offset=0):
    ctypes.memmove(address + offset, data, len(data))

kinds = {}
for name in ("plain", "huge", "readonly", "none", "locked", "sparse", "zeros", "guarded"):
    kinds[name] = mapping()
libc.sbrk.restype = ctypes.c_void_p
libc.sbrk.argtypes = [ctypes.c_long]
kinds["heap"] = (libc.sbrk(SIZE + 4 * MIB) + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
libc.madvise(kinds["huge"], SIZE, 14)
for name in ("sparse", "guarded"):
    libc.madvise(kinds[name], SIZE, 15)  # else its size depends on the huge pages that are free
for name in ("plain", "huge", "readonly", "none", "locked", "heap"):
    fill(kinds[name], noise)
for offset in range(0, SIZE, 64 * 4096):
    fill(kinds["sparse"], noise[:4096], offset)
    fill(kinds["guarded"], noise[:4096], offset)
ctypes.memset(kinds["zeros"], 0, SIZE)
# MADV_GUARD_INSTALL, from Linux 6.13
guard = libc.madvise(kinds["guarded"] + 4096, 4096, 102) if sys.argv[2] == "guards" else -1
libc.mprotect(kinds["readonly"], SIZE, 1)
libc.mprotect(kinds["none"], SIZE, 0)
assert libc.mlock(kinds["locked"], SIZE) == 0

def digest(*_):
    lines = []
    for name, address in kinds.items():
        if name == "none":
            libc.mprotect(address, SIZE, 1)
        sha = hashlib.sha256()
        for offset in range(0, SIZE, 4096):
            if name == "guarded" and guard == 0 and offset == 4096:
                continue
            sha.update(ctypes.string_at(address + offset, 4096))
        if name == "none":
            libc.mprotect(address, SIZE, 0)
        lines.append(name + " " + sha.hexdigest())
    with open(sys.argv[1] + ".new", "w") as file:
        file.write("\\n".join(lines) + "\\n")
    os.rename(sys.argv[1] + ".new", sys.argv[1])

signal.signal(signal.SIGUSR1, digest)
digest()
while True:
    time.sleep(0.05)
"""


class Memory:
    """A program with memory of all kinds, which tells its digest."""

    def __init__(self, site: Site, guards: str = "guards") -> None:
        program = site.folder / "memory.py"
        program.write_text(PROGRAM)
        self.out = site.folder / "digest"
        pid_file = site.folder / "memory.pid"
        command = [sys.executable, str(program), str(self.out), guards]
        start_detached(command, pid_file, site.environment)
        self.pid = int(pid_file.read_text())
        await_true(self.out.exists, "the memory is filled")

    def digest(self) -> str:
        self.out.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        await_true(self.out.exists, "the program tells its digest")
        return self.out.read_text()

    def resident(self) -> int:
        """Bytes in memory, or swapped out where others need much."""
        fields = rollup(self.pid)
        return fields["Rss:"] + fields["Swap:"]

    def kill(self) -> None:
        if identity(self.pid) is not None:
            kill(self.pid)
            self.await_gone()

    def await_gone(self) -> None:
        await_true(lambda: identity(self.pid) is None, "the PID is free")


@pytest.fixture
def memory(site: Site) -> Iterator[Memory]:
    with real_switch(fcntl.LOCK_SH):
        memory = Memory(site)
        yield memory
        memory.kill()


def saved_memory(site: Site, name: str) -> dict[str, int]:
    inspected = site.gpusnap("inspect", name, "--json")
    found: dict[str, int] = json.loads(inspected.stdout)["manifest"]["memory"]
    return found


def flip_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def huge(memory: Memory) -> int | None:
    """Bytes in huge pages of the mapping that asks for them; None where none asks."""
    blocks = Path(f"/proc/{memory.pid}/smaps").read_text().split("VmFlags:")
    for fields, flags in pairwise(blocks):
        if "hg" in flags.splitlines()[0].split():
            lines = [line.split() for line in fields.splitlines()]
            return next(int(line[1]) << 10 for line in lines if line[0] == "AnonHugePages:")
    return None


@pytest.mark.parametrize("compress", ["none", "lz4", "zstd", "auto"])
def test_every_kind_of_memory(site: Site, memory: Memory, compress: str) -> None:
    before, resident = memory.digest(), memory.resident()
    huge_before = huge(memory)
    saved = site.gpusnap("checkpoint", memory.pid, "one", "--kill", "--compress", compress)
    assert saved.returncode == 0, saved.stderr
    kept = saved_memory(site, "one")
    assert kept["raw"] > 124 << 20
    assert kept["zero"] >= 24 << 20
    assert kept["stored"] < kept["raw"] - kept["zero"] + (8 << 20)
    images = sum(file.stat().st_size for file in (site.repository / "one" / "criu").iterdir())
    assert images < 24 << 20, "CRIU saved some of the memory too"
    restored = site.gpusnap("restore", "one", "--verify-memory")
    assert restored.returncode == 0, restored.stderr
    assert memory.digest() == before
    assert huge_before is not None
    now_huge = huge(memory)
    assert now_huge is not None
    assert now_huge > 0 or huge_before == 0, "as many as the kernel has free"
    # Pages of zeros were there before and are not now, until they are touched.
    assert abs(memory.resident() - resident) <= 0.05 * resident + (25 << 20)


def test_left_running(site: Site, memory: Memory) -> None:
    before = memory.digest()
    assert site.gpusnap("checkpoint", memory.pid, "one").returncode == 0
    assert memory.digest() == before
    memory.kill()
    assert site.gpusnap("restore", "one").returncode == 0
    assert memory.digest() == before


def test_without_regions(site: Site) -> None:
    memory = Memory(site, "none")  # CRIU 4.1.1 by itself cannot save guard pages
    before = memory.digest()
    saved = site.gpusnap("checkpoint", memory.pid, "one", "--kill", "--no-regions")
    assert saved.returncode == 0, saved.stderr
    assert not (site.repository / "one" / "regions").exists()
    memory.await_gone()
    pages = site.repository / "one" / "criu" / "pages-1.img"
    assert pages.stat().st_size > 2 * PART, "a large file, which is summed in parts"
    flip_bit(pages, PART + 4096)
    refused = site.gpusnap("restore", "one")
    assert refused.returncode == 12
    assert "File criu/pages-1.img has another BLAKE3" in refused.stderr
    assert identity(memory.pid) is None
    flip_bit(pages, PART + 4096)
    assert site.gpusnap("restore", "one").returncode == 0
    assert memory.digest() == before
    memory.kill()


def test_a_bare_restore_is_refused(site: Site, memory: Memory) -> None:
    assert site.gpusnap("checkpoint", memory.pid, "one", "--kill").returncode == 0
    memory.await_gone()
    images = site.repository / "one" / "criu"
    work = site.folder / "work"
    work.mkdir()
    command = [*find_criu().command, "restore", "--restore-detached", "-D", images, "-W", work]
    ran = subprocess.run([*map(str, command), "-o", "log"], capture_output=True, check=False)
    assert ran.returncode != 0
    assert identity(memory.pid) is None


def test_a_flipped_bit_in_a_pack(site: Site, memory: Memory) -> None:
    assert site.gpusnap("checkpoint", memory.pid, "one", "--kill").returncode == 0
    memory.await_gone()
    pack = max(
        (site.repository / "one" / "regions").iterdir(), key=lambda file: file.stat().st_size
    )
    flip_bit(pack, pack.stat().st_size // 2)
    refused = site.gpusnap("restore", "one")
    assert refused.returncode == 12
    assert pack.name in refused.stderr
    memory.await_gone()


def test_a_full_disk_while_memory_is_written(site: Site, memory: Memory, tmp_path: Path) -> None:
    before = memory.digest()
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", small], check=True)
    try:
        for end in ("--kill", "--leave-running"):
            ran = site.gpusnap(
                "checkpoint", memory.pid, small / "full", end, "--force", "repository-space"
            )
            assert ran.returncode != 0
            assert ran.stderr.splitlines()[-1] != ""
            assert "Traceback" not in ran.stderr
            assert memory.digest() == before
            assert not (small / "full").exists()
    finally:
        subprocess.run(["umount", small], check=True)


def test_device_memory_goes_past_criu(site: Site) -> None:
    job = Job.start(site, steps=STEPS, step_us=SLOW_US, memory=32 << 20)
    assert site.gpusnap("checkpoint", job.pid, "one", "--kill").returncode == 0
    assert saved_memory(site, "one")["raw"] >= 32 << 20
    assert site.gpusnap("restore", "one").returncode == 0
    job.adopt()
    assert job.finish() == reference_log(STEPS, 32 << 20)


class Family:
    """A tree of three processes; see :mod:`tests.e2e.family`."""

    NAMES = ("parent", "first", "second")

    def __init__(self, site: Site) -> None:
        self.folder = site.folder / "family"
        self.folder.mkdir()
        program = Path(__file__).with_name("family.py")
        pid_file = site.folder / "family.pid"
        start_detached([sys.executable, str(program), str(self.folder)], pid_file, site.environment)
        files = [self.folder / f"pid.{name}" for name in self.NAMES]
        await_true(lambda: all(map(Path.exists, files)), "the family lives")
        self.pids = [int(file.read_text()) for file in files]
        self.pid = self.pids[0]

    def digests(self) -> str:
        files = [self.folder / f"digest.{name}" for name in self.NAMES]
        for file in files:
            file.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        await_true(lambda: all(map(Path.exists, files)), "the digests are told")
        return "".join(f"{file.name}\n{file.read_text()}" for file in files)

    def resident(self, field: str) -> list[int]:
        """Bytes of each process by a field of smaps_rollup, with those that are swapped out."""
        swapped = "SwapPss:" if field.startswith("Pss") else "Swap:"
        fields = map(rollup, self.pids)
        return [each[field] + each[swapped] for each in fields]

    def kill(self) -> None:
        for pid in self.pids:
            if identity(pid) is not None:
                kill(pid)
        await_true(lambda: not any(map(identity, self.pids)), "the PIDs are free")


def rollup(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value) << 10 for name, value, _ in map(str.split, lines)}


@pytest.fixture
def family(site: Site) -> Iterator[Family]:
    with real_switch(fcntl.LOCK_SH):
        family = Family(site)
        yield family
        family.kill()


def near(now: list[int], before: list[int]) -> bool:
    return all(abs(a - b) <= 0.05 * b for a, b in zip(now, before, strict=True))


def test_a_tree_with_memory_in_common(site: Site, family: Family) -> None:
    before = family.digests()
    anonymous, share = family.resident("Anonymous:"), family.resident("Pss_Anon:")
    resident = family.resident("Rss:")
    saved = site.gpusnap("checkpoint", family.pid, "one", "--kill", "--compress", "none")
    assert saved.returncode == 0, saved.stderr
    # Of 9 mappings these 5 are of one process alone: own, own, replaced of parent and
    # first, rewritten of first. The others are for CRIU, which knows how to share them again.
    assert 5 * SIZE <= saved_memory(site, "one")["raw"] < 6 * SIZE
    restored = site.gpusnap("restore", "one", "--verify-memory")
    assert restored.returncode == 0, restored.stderr
    assert family.digests() == before
    assert near(family.resident("Anonymous:"), anonymous)
    assert near(family.resident("Pss_Anon:"), share)
    # Pages of files come back when they are touched.
    assert all(
        now <= 1.05 * then for now, then in zip(family.resident("Rss:"), resident, strict=True)
    )


FORKER = """
import mmap, os, pathlib, signal, sys, time
memory = mmap.mmap(-1, 24 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(bytes([1]) * (24 << 20))
signal.signal(signal.SIGUSR1, lambda *_: os.fork())
pathlib.Path(sys.argv[1]).touch()
while memory[12 << 20] == 1:
    time.sleep(0.05)
"""

FORKED_MEANWHILE = """
import os, signal, sys, time
import gpusnap
from gpusnap.events import CriuNotified
from gpusnap.hookspecs import hookimpl
from gpusnap.plugins import default_plugins
from gpusnap.target import find_target
pid = int(sys.argv[1])

class Fork:
    @hookimpl
    def gpusnap_event(self, event):
        if event == CriuNotified(script="pre-dump") and len(find_target(pid).processes) == 1:
            os.kill(pid, signal.SIGUSR1)
            while len(find_target(pid).processes) == 1:
                time.sleep(0.01)

default_plugins().register(Fork(), "fork")
manifest = gpusnap.create_checkpoint(pid, "one").manifest
print(len(manifest.target.processes), manifest.memory)
"""


def test_a_fork_between_choice_and_dump(site: Site) -> None:
    program, script = site.folder / "forker.py", site.folder / "meanwhile.py"
    program.write_text(FORKER)
    script.write_text(FORKED_MEANWHILE)
    ready, pid_file = site.folder / "ready", site.folder / "forker.pid"
    start_detached([sys.executable, str(program), str(ready)], pid_file, site.environment)
    await_true(ready.exists, "the memory is filled")
    pid = int(pid_file.read_text())
    ran = site.run(script, pid)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "2 None\n", "the memory in common was left to CRIU"
    pids = find_target(pid).pids
    for process in pids:
        os.kill(process, signal.SIGKILL)
    await_true(lambda: not any(map(identity, pids)), "the PIDs are free")
    assert site.gpusnap("restore", "one").returncode == 0
    pids = find_target(pid).pids
    assert len(pids) == 2
    for process in pids:
        os.kill(process, signal.SIGKILL)


THREADS = """
import hashlib, os, sys, threading, time
threading.stack_size(32 << 20)
steps, results = {}, {}

def compute(number):
    sha = hashlib.sha256(bytes([number]))
    for step in range(400):
        sha = hashlib.sha256(sha.digest())
        steps[number] = step
        while step >= 200 and not os.path.exists(sys.argv[1] + ".go"):
            time.sleep(0.01)
    results[number] = sha.hexdigest()

threads = [threading.Thread(target=compute, args=(number,)) for number in range(1, 9)]
for thread in threads:
    thread.start()
while list(steps.values()) != [200] * 8:
    time.sleep(0.01)
open(sys.argv[1] + ".began", "w").close()
for thread in threads:
    thread.join()
with open(sys.argv[1], "w") as file:
    file.write("".join(f"{number} {results[number]}\\n" for number in range(1, 9)))
"""


def threads_result() -> str:
    lines = []
    for number in range(1, 9):
        digest = hashlib.sha256(bytes([number]))
        for _ in range(400):
            digest = hashlib.sha256(digest.digest())
        lines.append(f"{number} {digest.hexdigest()}\n")
    return "".join(lines)


def test_threads_go_on_on_their_stacks(site: Site) -> None:
    program, out = site.folder / "threads.py", site.folder / "threads.out"
    program.write_text(THREADS)
    pid_file = site.folder / "threads.pid"
    start_detached([sys.executable, str(program), str(out)], pid_file, site.environment)
    pid = int(pid_file.read_text())
    await_true(Path(f"{out}.began").exists, "the threads compute")
    assert site.gpusnap("checkpoint", pid, "one", "--kill").returncode == 0
    spans = [each.length for each in Filler(site.repository / "one" / "regions").spans]
    assert sum(spans) >= 8 * (31 << 20), "the stacks go past CRIU"
    restored = site.gpusnap("restore", "one")
    assert restored.returncode == 0, restored.stderr
    Path(f"{out}.go").touch()  # not before: it might end before gpusnap has seen it run
    await_true(out.exists, "the threads end")
    await_true(lambda: identity(pid) is None, "the program ends")
    assert out.read_text() == threads_result()
