"""A parent and two forked children with memory of their own and memory in common.

``python family.py FOLDER``. On SIGUSR1 to the parent each of the three writes the digests of its
mappings to ``FOLDER/digest.NAME``. Each mapping has pages without access at both ends, so that
the kernel merges none with another.
"""

import ctypes
import hashlib
import os
import random
import signal
import sys
from pathlib import Path

SIZE = 20 << 20
EDGE = 2 << 20

C = ctypes.CDLL(None)
C.mmap.restype = ctypes.c_void_p
C.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
C.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
C.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def make(content: str) -> int:
    start: int = C.mmap(None, SIZE + 2 * EDGE, 0, 0x22, -1, 0) + EDGE
    C.mprotect(start, SIZE, 3)
    fill(start, content)
    return start


def fill(start: int, content: str) -> None:
    ctypes.memmove(start, random.Random(content).randbytes(SIZE), SIZE)


def digest(start: int) -> str:
    view = (ctypes.c_char * SIZE).from_address(start)
    return hashlib.sha256(view).hexdigest()


def write(name: str, text: str) -> None:
    folder = Path(sys.argv[1])
    draft = folder / f"{name}.new"
    draft.write_text(text)
    draft.rename(folder / name)


def live(name: str, memory: dict[str, int], children: tuple[int, ...] = ()) -> None:
    """Tell the digests whenever asked, for ever."""

    def tell() -> None:
        lines = [f"{kind} {start:#x} {digest(start)}\n" for kind, start in memory.items()]
        write(f"digest.{name}", "".join(lines))

    signals = {signal.SIGUSR1}
    write(f"pid.{name}", str(os.getpid()))
    while True:
        signal.sigwait(signals)
        for child in children:
            os.kill(child, signal.SIGUSR1)
        tell()


def first(memory: dict[str, int]) -> None:
    """Has the same addresses as the parent, with other content in two of three."""
    fill(memory["rewritten"], "first's")
    fill(memory["replaced"], "first's, too")
    live("first", memory | {"own": make("first's own")})


def second(memory: dict[str, int]) -> None:
    """Shares two of three with the parent; the third it lets go, so that nobody shares that."""
    C.munmap(memory.pop("replaced"), SIZE)
    live("second", memory)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    memory = {name: make(name) for name in ("common", "rewritten", "replaced")}
    children = []
    for child in (first, second):
        pid = os.fork()
        if pid == 0:
            child(memory)
        children.append(pid)
    live("parent", memory | {"own": make("parent's own")}, tuple(children))


if __name__ == "__main__":
    main()
