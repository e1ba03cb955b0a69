"""A process whose every page says which it is, so that images can be searched for it."""

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec

from gpusnap.criu import Range
from tests.criu.counters import Counter

PAGE = 4096
MARK = b"\xf0gpusnap"
BASE = 0x100000000000
"""Where the first region begins; the others follow without a gap."""

Page: TypeAlias = tuple[int, str, int]
"""The process by its number in the tree, the region, the page in it."""

REGIONS = {
    "before": 6,
    "middle": 12,
    "locked": 5,
    "shared": 7,
    "file": 5,
    "readonly": 4,
    "none": 4,
    "wide": 700,
    "guards": 8,
    "after": 9,
    "huge": 1024,
    "last": 3,
}
"""Pages of each; "before" and "middle" are one mapping, so are others that are of one kind."""
GUARD_PAGES = (0, 3, 7)
"""Pages of "guards" that are guard pages of the kernel's, where the test asks for those."""

# In the process; the counter's program fills in nothing, its arguments are the file and the folder
SETUP = """
import ctypes, json, mmap, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
for call in (libc.mprotect, libc.madvise, libc.mlock, libc.munmap):
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def do(call, *arguments):
    if call(*arguments) != 0:
        raise OSError(ctypes.get_errno(), call.__name__)

def place(name, at, length):
    kind, file = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1
    if name == "shared":
        kind = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
    if name == "file":
        kind, file = mmap.MAP_PRIVATE, os.open(sys.argv[2] + "/data", os.O_RDWR | os.O_CREAT)
        os.truncate(file, length)
    if libc.mmap(at, length, 3, kind | 0x100000, file, 0) != at:  # MAP_FIXED_NOREPLACE
        raise OSError(ctypes.get_errno(), name)
    if name == "locked":
        do(libc.mlock, at, length, 0)
    if name == "huge":
        do(libc.madvise, at, length, 14)

def fill(who):
    for number, (name, (at, count)) in enumerate(regions.items()):
        for page in range(count):
            # By halves: what is left of them in the heap looks like no page
            content = struct.pack("<8sHHI", mark, who, number, page) * (2048 // 16)
            ctypes.memmove(at + page * 4096, content, 2048)
            ctypes.memmove(at + page * 4096 + 2048, content, 2048)

regions = {}
at, mark, sizes = @BASE@, @MARK@, @REGIONS@
for name, count in sizes.items():
    at = (at + (1 << 21) - 1 & -1 << 21) if name == "huge" else at
    place(name, at, count * 4096)
    regions[name] = (at, count)
    at += count * 4096
fill(0)
family = [os.getpid()]
for who in range(1, @CHILDREN@ + 1):
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        libc.prctl(1, 9)  # die with the parent
        # The last child keeps the pages of its parent, which the kernel has them share
        if who < @CHILDREN@:
            fill(who)
        os.close(told)
        os.close(ready)
        while True:
            time.sleep(1)
    os.close(told)
    os.read(ready, 1)
    os.close(ready)
    family.append(child)
for page in @GUARDS@:
    do(libc.madvise, regions["guards"][0] + page * 4096, 4096, 102)
do(libc.mprotect, regions["readonly"][0], regions["readonly"][1] * 4096, 1)
do(libc.mprotect, regions["none"][0], regions["none"][1] * 4096, 0)
with open(sys.argv[2] + "/regions.json", "w") as file:
    json.dump({"family": family, "regions": regions}, file)
"""


class Layout(msgspec.Struct, frozen=True):
    """What the process says of itself."""

    family: list[int]
    regions: dict[str, tuple[int, int]]

    def range(self, who: int, name: str, first: int = 0, count: int | None = None) -> Range:
        """Pages of a region, all from the first on if not told."""
        address, pages = self.regions[name]
        return Range(
            self.family[who],
            address + first * PAGE,
            (pages - first if count is None else count) * PAGE,
        )

    def pages(self, ranges: Iterable[Range]) -> set[Page]:
        """Which pages ranges cover."""
        wanted = {
            (each.pid, address) for each in ranges for address in range(each.start, each.end, PAGE)
        }
        return {
            (who, name, page)
            for who, pid in enumerate(self.family)
            for name, (at, count) in self.regions.items()
            for page in range(count)
            if (pid, at + page * PAGE) in wanted
        }

    def memory(self, who: int, name: str) -> bytes:
        """A region as it is now."""
        address, count = self.regions[name]
        with Path(f"/proc/{self.family[who]}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(count * PAGE)


def start_marked(
    start: Callable[..., Counter], *, children: int = 0, guards: bool = False
) -> tuple[Counter, Layout]:
    """Start a counter with such memory."""
    values = {
        "BASE": BASE,
        "MARK": MARK,
        "REGIONS": REGIONS,
        "CHILDREN": children,
        "GUARDS": GUARD_PAGES if guards else (),
    }
    setup = SETUP
    for name, value in values.items():
        setup = setup.replace(f"@{name}@", repr(value))
    counter = start(setup)
    text = (counter.folder / "regions.json").read_bytes()
    return counter, msgspec.json.decode(text, type=Layout)


def saved_pages(images: Path) -> set[Page]:
    """The marked pages that are in images."""
    found, names = set(), list(REGIONS)
    for path in images.glob("pages-*.img"):
        data = path.read_bytes()
        for at in range(0, len(data), PAGE):
            mark, who, number, page = struct.unpack_from("<8sHHI", data, at)
            if mark == MARK and data[at : at + PAGE] == data[at : at + 16] * (PAGE // 16):
                found.add((who, names[number], page))
    return found
