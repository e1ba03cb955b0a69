"""Memory that is named is saved before all other."""

import sys

from gpusnap.datapath import Saved
from gpusnap.repository import open_snapshot
from tests.e2e.jobs import Site, await_true, start_detached

MIB = 1 << 20
SIZE = 24 * MIB

PROGRAM = """
import ctypes, mmap, os, random, sys, time
memory = mmap.mmap(-1, int(sys.argv[2]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_DONTDUMP)  # so the kernel merges it with no other mapping
memory[:] = random.randbytes(len(memory))
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(ctypes.addressof(ctypes.c_char.from_buffer(memory))))
os.rename(sys.argv[1] + ".new", sys.argv[1])
while True:
    time.sleep(0.05)
"""


def test_a_range_of_the_root(site: Site) -> None:
    told, pid_file = site.folder / "address", site.folder / "pid"
    start_detached([sys.executable, "-c", PROGRAM, str(told), str(SIZE)], pid_file, {})
    await_true(told.exists, "the memory is filled")
    pid, start = int(pid_file.read_text()), int(told.read_text())
    first = start + 9 * MIB
    done = site.gpusnap(
        *("checkpoint", pid, "one", "--kill", "--compress", "none", "--parallel-workers", 1),
        *("--first", f"{first:x}-{first + 2 * MIB:x}"),
    )
    assert done.returncode == 0, done.stderr
    saved = Saved(open_snapshot(site.repository / "one").regions)
    chunks = [(saved.spans[place.span], place) for each in saved.located() for place in each.places]
    addresses = [span.start + place.offset for span, place in chunks]
    assert addresses[:2] == [first, first + MIB]
    addresses = [each for each in addresses if start <= each < start + SIZE]
    assert addresses[2] == start
    assert sorted(addresses) == list(range(start, start + SIZE, MIB))
