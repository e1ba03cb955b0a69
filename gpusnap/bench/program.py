"""The program that is saved and brought back: ``python -m gpusnap.bench.program FOLDER SIZE``.

It goes into the background, in a session of its own, and fills private memory with a content
that depends on nothing but the size. The CRC-32 of all of it goes to the file ``answer`` in the
folder, first when the memory is filled, then at every SIGUSR1. It ends with the bench that
started it, whatever that one dies of.
"""

import ctypes
import mmap
import os
import random
import signal
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from gpusnap.target import alive
from gpusnap.types import ProcessId

ANSWER = "answer"
BLOCK = 16 << 20
"""Bytes after which the kinds of content come again, other bytes of them."""

_SEED = 20_260
_STRIDE = 4104
"""By so much more is each block's content turned; no multiple of a page, so no two are alike."""

_EXPONENTS = bytes((0x3C, 0x3D, 0xBC, 0xBD) * 64)
"""First bytes of floats between 1/128 and 1/8 and their negatives (bytes are little-endian)."""

_WATCH_S = 1.0
"""How often the program looks whether the bench still runs."""


def contents() -> tuple[bytes, ...]:
    """What a block holds, one after the other.

    Half of it is pseudo-random and cannot be compressed, a quarter are floats of 32 bits of a
    small range, an eighth are whole numbers of 64 bits up to 255, an eighth are zeros.
    """
    chance = random.Random(_SEED)  # noqa: S311 - the same content each time
    floats = bytearray(chance.randbytes(BLOCK // 4))
    floats[3::4] = chance.randbytes(BLOCK // 16).translate(_EXPONENTS)
    numbers = bytearray(BLOCK // 8)
    numbers[::8] = chance.randbytes(BLOCK // 64)
    return chance.randbytes(BLOCK // 2), bytes(floats), bytes(numbers), bytes(BLOCK // 8)


def _pieces(size: int) -> Iterator[tuple[int, memoryview]]:
    """The whole content, as offsets and pieces."""
    doubled = [memoryview(content * 2) for content in contents()]
    for number, block in enumerate(range(0, size, BLOCK)):
        offset = block
        for content in doubled:
            length = len(content) // 2
            turned = number * _STRIDE % length
            yield offset, content[turned : turned + length]
            offset += length


def fill(memory: memoryview) -> None:
    """Write the content into memory, as much of it as goes in."""
    for offset, piece in _pieces(len(memory)):
        room = memory[offset : offset + len(piece)]
        room[:] = piece[: len(room)]


def checksum(memory: memoryview) -> str:
    """CRC-32 of all blocks by zlib, which shares no code with what is measured."""
    parts = [memory[offset : offset + BLOCK] for offset in range(0, len(memory), BLOCK)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sums = b"".join(each.to_bytes(4) for each in pool.map(zlib.crc32, parts))
    return f"{zlib.crc32(sums):08x}"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the program says of its memory.

    Attributes:
        address: Where the memory begins.
        checksum: Of all of it.
    """

    address: int
    checksum: str


def _answer(folder: Path, address: int, memory: memoryview) -> None:
    said = Answer(address=address, checksum=checksum(memory))
    draft = folder / f"{ANSWER}.new"
    draft.write_bytes(msgspec.json.encode(said))
    draft.rename(folder / ANSWER)


def _serve(folder: Path, size: int, owner: ProcessId) -> None:
    signals = {signal.SIGUSR1, signal.SIGALRM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = memoryview(mapping)
    fill(memory)
    address = _address(memory)
    _answer(folder, address, memory)
    # Not sigtimedwait: frozen for longer than its timeout it tells of a signal that never came.
    signal.setitimer(signal.ITIMER_REAL, _WATCH_S, _WATCH_S)
    while alive(owner):
        if signal.sigwait(signals) == signal.SIGUSR1:
            _answer(folder, address, memory)


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def main() -> None:
    """Read the arguments, go into the background and print the PID there."""
    folder, size, pid, ticks = sys.argv[1:]
    if child := os.fork():
        print(child)  # noqa: T201 - it is the answer to whoever started it
        return
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    _serve(Path(folder), int(size), ProcessId(int(pid), int(ticks)))


if __name__ == "__main__":
    main()
