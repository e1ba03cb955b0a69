"""A target program with a checkable result: ``python -m gpusnap.testing.program LOG STEPS``.

Each step runs one kernel on device memory and changes host memory by its outcome, then appends
``step checksum`` to the log; the last line ``done digest`` covers all device and host memory.
The log depends on nothing but the arguments: with and without interruption, on any machine, it
is the same digit for digit. :func:`reference_log` computes it without a device.
"""

import argparse
import functools
import hashlib
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from gpusnap.errors import GpusnapError
from gpusnap.testing.device import SimulatedDevice

DEFAULT_MEMORY = 1 << 20
_WINDOW = 4096
_WORD = 8
_MIXER = 6364136223846793005
_MASK = (1 << 64) - 1


def initial_bytes(name: str, size: int) -> Iterator[tuple[int, bytes]]:
    """The first content of a memory, as offsets and pieces; no page of it is like another."""
    piece = 1 << 16
    for offset in range(0, size, piece):
        seed = f"{name} {offset}".encode()
        yield offset, hashlib.shake_128(seed).digest(min(piece, size - offset))


def mix(memory: memoryview, step: int, seed: int) -> int:
    """The kernel: mix one window of 64-bit words, and return its checksum."""
    windows = len(memory) // _WINDOW
    start = (step * 7919 % windows) * _WINDOW
    with memory[start : start + _WINDOW] as window, window.cast("Q") as words:
        carry = seed
        for index, word in enumerate(words):
            carry = ((word ^ carry) * _MIXER + step) & _MASK
            words[index] = carry
        return zlib.crc32(window, seed & 0xFFFFFFFF)


class HostState:
    """The part of the computing that lives in host memory."""

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)
        for offset, piece in initial_bytes("host", size):
            self.memory[offset : offset + len(piece)] = piece
        self._chain = hashlib.sha256(b"gpusnap").digest()

    @property
    def seed(self) -> int:
        """What the next kernel starts from."""
        return int.from_bytes(self._chain[:_WORD], "little")

    def absorb(self, step: int, checksum: int) -> int:
        """Take in the outcome of a kernel; returns the checksum of the step."""
        with memoryview(self.memory) as view:
            own = mix(view, step, checksum)
        self._chain = hashlib.sha256(self._chain + checksum.to_bytes(4) + own.to_bytes(4)).digest()
        return zlib.crc32(self._chain)


def _host_size(memory: int) -> int:
    return max(_WINDOW, min(memory, 1 << 20) // _WINDOW * _WINDOW)


def _line(step: int, checksum: int) -> str:
    return f"{step} {checksum:08x}\n"


def _last_line(digest: "hashlib._Hash", host: HostState) -> str:
    digest.update(host.memory)
    return f"done {digest.hexdigest()}\n"


def reference_log(steps: int, memory: int = DEFAULT_MEMORY) -> str:
    """The log of a run of so many steps on so many bytes of device memory."""
    device = bytearray(memory)
    for offset, piece in initial_bytes("device", memory):
        device[offset : offset + len(piece)] = piece
    host = HostState(_host_size(memory))
    lines = []
    with memoryview(device) as view:
        steps_done = (host.absorb(step, mix(view, step, host.seed)) for step in range(steps))
        lines = [_line(step, checksum) for step, checksum in enumerate(steps_done)]
    return "".join(lines) + _last_line(hashlib.sha256(device), host)


def count_steps(log: Path) -> int:
    """How many steps a program has logged so far; 0 where there is no log yet."""
    try:
        lines = log.read_text().splitlines()
    except FileNotFoundError:
        return 0
    return sum(not line.startswith("done") for line in lines)


def run(log: Path, steps: int, memory: int, index: int, step_us: int) -> None:
    """Compute on a device of the machine that the environment names.

    Args:
        log: File the lines are appended to; a restore goes on with it.
        steps: How many.
        memory: Bytes of device memory, a multiple of 4096.
        index: Which device.
        step_us: Least duration of a step in microseconds.
    """
    device = SimulatedDevice.open(index)
    buffer = device.allocate(memory)
    for offset, piece in initial_bytes("device", memory):
        buffer.copy_in(piece, offset)
    host = HostState(_host_size(memory))
    # Appending and write-only: CRIU then lets the file be longer than it was at the dump.
    with log.open("ab", buffering=0) as file:
        for step in range(steps):
            begin = time.monotonic()
            checksum = device.launch(functools.partial(mix, step=step, seed=host.seed), buffer)
            file.write(_line(step, host.absorb(step, checksum)).encode())
            time.sleep(max(0.0, begin + step_us / 1e6 - time.monotonic()))
        digest = hashlib.sha256()
        device.launch(digest.update, buffer)
        file.write(_last_line(digest, host).encode())


def _memory(text: str) -> int:
    size = int(text)
    if size <= 0 or size % _WINDOW:
        msg = f"{size} is no positive multiple of {_WINDOW}"
        raise argparse.ArgumentTypeError(msg)
    return size


def main() -> None:
    """Read the command line and compute."""
    parser = argparse.ArgumentParser(prog="python -m gpusnap.testing.program")
    parser.add_argument("log", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--memory", type=_memory, default=DEFAULT_MEMORY, metavar="BYTES")
    parser.add_argument("--device", type=int, default=0, metavar="INDEX")
    parser.add_argument("--step-us", type=int, default=10_000, metavar="MICROSECONDS")
    arguments = parser.parse_args()
    try:
        run(arguments.log, arguments.steps, arguments.memory, arguments.device, arguments.step_us)
    except GpusnapError as error:
        sys.exit(error.text)


if __name__ == "__main__":
    main()
