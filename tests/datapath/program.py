"""A process with memory of many kinds, whose standard input tells it when to lose it all."""

import ctypes
import json
import os
import sys
from collections.abc import Callable

PAGE = 4096
MIB = 1 << 20
READ, WRITE, NONE = 1, 2, 0
HUGE, NO_HUGE, GUARD = 14, 15, 102
FIXED_ANONYMOUS = 0x02 | 0x10 | 0x20

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
for name in ("mprotect", "madvise"):
    getattr(LIBC, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LIBC.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

Step = Callable[[int, int], None]
"""Does something to the memory at an address, of a length."""


def call(function: str, *arguments: int) -> None:
    if getattr(LIBC, function)(*arguments):
        raise OSError(ctypes.get_errno(), function)


def noise(address: int, length: int) -> None:
    ctypes.memmove(address, os.urandom(length), length)


def text(address: int, length: int) -> None:
    words = (b"checkpoint %08d restore %08d\n" % (at, at * at % 9973) for at in range(length // 36))
    data = b"".join(words)[:length]
    ctypes.memmove(address, data, len(data))


def floats(address: int, length: int) -> None:
    """Single precision numbers between 0.5 and 1."""
    numbers = bytearray(os.urandom(length))
    numbers[3::4] = b"\x3f" * (length // 4)
    numbers[2::4] = bytes(byte & 0x7F for byte in numbers[2::4])
    ctypes.memmove(address, bytes(numbers), length)


def halves(address: int, length: int) -> None:
    """Numbers of two bytes whose upper byte has few values."""
    numbers = bytearray(os.urandom(length))
    numbers[1::2] = bytes(0x3C + byte % 4 for byte in numbers[1::2])
    ctypes.memmove(address, bytes(numbers), length)


def zeros(address: int, length: int) -> None:
    ctypes.memset(address, 0, length)


def scattered(address: int, length: int) -> None:
    for at in range(0, length, 37 * PAGE):
        noise(address + at, PAGE)


def striped(address: int, length: int) -> None:
    """Every other page of zeros."""
    noise(address, length)
    for at in range(0, length, 2 * PAGE):
        zeros(address + at, PAGE)


def nothing(address: int, length: int) -> None:
    pass


def protect(protection: int) -> Step:
    return lambda address, length: call("mprotect", address, length, protection)


def advise(advice: int) -> Step:
    return lambda address, length: call("madvise", address, length, advice)


def lock(address: int, length: int) -> None:
    call("mlock", address, length)


def guard(address: int, length: int) -> None:
    try:
        call("madvise", address + PAGE, 3 * PAGE, GUARD)
    except OSError:  # kernels before 6.13 have no such regions
        zeros(address + PAGE, 3 * PAGE)


KINDS: dict[str, tuple[int, Step, Step, Step]] = {
    "small": (2 * MIB + 3 * PAGE, advise(NO_HUGE), noise, nothing),
    "huge": (6 * MIB, advise(HUGE), noise, nothing),
    "text": (3 * MIB, nothing, text, nothing),
    "floats": (2 * MIB, nothing, floats, nothing),
    "halves": (2 * MIB, nothing, halves, nothing),
    "read-only": (MIB + PAGE, nothing, noise, protect(READ)),
    "none": (MIB, nothing, noise, protect(NONE)),
    "scattered": (20 * MIB, advise(NO_HUGE), scattered, nothing),
    "striped": (MIB, nothing, striped, nothing),
    "locked": (MIB, lock, striped, nothing),
    "guarded": (MIB, advise(NO_HUGE), noise, guard),
    "zeros": (MIB, nothing, zeros, nothing),
    "untouched": (MIB, nothing, nothing, nothing),
    "page": (PAGE, nothing, noise, nothing),
}
"""Length, and what is done before the memory is filled, to fill it, and afterwards."""


def mapped(length: int, address: int | None = None) -> int:
    """Map empty memory, at an address that was mapped before or a new one between two holes."""
    fixed = FIXED_ANONYMOUS if address else FIXED_ANONYMOUS & ~0x10
    found = LIBC.mmap(address, length + (0 if address else 2 * PAGE), READ | WRITE, fixed, -1, 0)
    if found in {None, ctypes.c_void_p(-1).value}:
        raise OSError(ctypes.get_errno(), "mmap")
    if address:
        return address
    call("munmap", found, PAGE)
    call("munmap", found + PAGE + length, PAGE)
    return int(found) + PAGE


LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def make(kind: str) -> int:
    length, before, fill, after = KINDS[kind]
    address = mapped(length)
    for step in (before, fill, after):
        step(address, length)
    return address


def lose(kind: str, address: int) -> None:
    """Map it anew: the same place and rights, but empty, as after CRIU's restore."""
    length, before, _fill, after = KINDS[kind]
    mapped(length, address)
    for step in (before, after):
        step(address, length)


def bulk(mebibytes: int) -> int:
    """Many bytes of noise, made of little of it."""
    length = mebibytes * MIB
    address = mapped(length)
    advise(HUGE)(address, length)
    source = os.urandom(MIB + mebibytes)
    for number in range(mebibytes):
        ctypes.memmove(address + number * MIB, source[number : number + MIB], MIB)
    return address


def main() -> None:
    kinds = sys.argv[1:]
    if kinds[0] == "bulk":
        KINDS["bulk"] = (int(kinds.pop()) * MIB, advise(HUGE), nothing, nothing)
        places = [bulk(KINDS["bulk"][0] // MIB)]
    else:
        places = [make(kind) for kind in kinds]
    lengths = [KINDS[kind][0] for kind in kinds]
    print(json.dumps(list(zip(places, lengths, strict=True))), flush=True)
    for _line in sys.stdin:
        for kind, address in zip(kinds, places, strict=True):
            lose(kind, address)
        print("lost", flush=True)


if __name__ == "__main__":
    main()
