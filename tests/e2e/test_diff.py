"""Two snapshots of a program that changes a known part of its memory."""

import json
import os
import signal
import sys

from gpusnap.target import identity
from tests.e2e.jobs import Site, await_true, start_detached

PROGRAM = """
import mmap, os, random, signal, sys, time
MIB = 1 << 20
memory = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_DONTDUMP)  # so the kernel merges it with no other mapping
memory[: 24 * MIB] = random.Random(7).randbytes(24 * MIB)

def change(*_):
    for page in range(0, 24 * MIB // 4096, 20):
        memory[page * 4096] ^= 1
    memory[30 * MIB] = 1
    open(sys.argv[1], "w").close()

signal.signal(signal.SIGUSR1, change)
open(sys.argv[1], "w").close()
while True:
    time.sleep(0.05)
"""
CHANGED = (24 * 256 + 19) // 20 + 1
"""Pages: every twentieth of those that are not zero, and one that was."""


def test_exactly_the_pages_that_changed(site: Site) -> None:
    program, done, pid_file = (site.folder / name for name in ("p.py", "done", "pid"))
    program.write_text(PROGRAM)
    start_detached([sys.executable, str(program), str(done)], pid_file, site.environment)
    pid = int(pid_file.read_text())
    try:
        await_true(done.exists, "the memory is filled")
        saved = site.gpusnap("checkpoint", pid, "before", "--compress=zstd", "--tag=t")
        assert saved.returncode == 0, saved.stderr
        done.unlink()
        os.kill(pid, signal.SIGUSR1)
        await_true(done.exists, "the memory is changed")
        saved = site.gpusnap("checkpoint", pid, "after")
        assert saved.returncode == 0, saved.stderr
    finally:
        os.kill(pid, signal.SIGKILL)
        await_true(lambda: identity(pid) is None, "the PID is free")
    ran = site.gpusnap("diff", "before", "after", "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])["result"]
    [row] = [each for each in found["memory"] if each["length"] >= 32 << 20]
    assert (row["changed"], row["only_a"], row["only_b"]) == (CHANGED * 4096, 0, 0)
    listed = json.loads(site.gpusnap("list", "--tag=t", "--json").stdout)["snapshots"]
    assert [each["name"] for each in listed] == ["before"]
