"""A GPU program with a checkable result: ``python -m gpusnap_nvidia.program LOG STEPS``.

It needs neither a compiler nor a framework: its kernel is PTX text that the driver compiles.
Each step runs the kernel on one window of device memory and changes host memory by the
outcome, then appends ``step checksum`` to the log; the last line ``done digest`` covers all
device and host memory. The log depends on nothing but the arguments: with and without
interruption, on any GPU, it is the same digit for digit. :func:`reference_log` computes it
without a GPU.
"""

import argparse
import hashlib
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from gpusnap_nvidia import kernel
from gpusnap_nvidia.libcuda import Libcuda, ffi

DEFAULT_MEMORY = 64 << 20
_WINDOW = 4096
_WORD = 8
_THREADS = 256
_MASK = (1 << 64) - 1
_PIECE = 1 << 20
_Pointer: TypeAlias = Any


def initial_bytes(name: str, size: int) -> Iterator[tuple[int, bytes]]:
    """The first content of a memory, as offsets and pieces; no page of it is like another."""
    for offset in range(0, size, _PIECE):
        seed = f"{name} {offset}".encode()
        yield offset, hashlib.shake_128(seed).digest(min(_PIECE, size - offset))


class Host:
    """The part of the computing that lives in host memory."""

    def __init__(self) -> None:
        self.memory = bytearray(b"".join(piece for _, piece in initial_bytes("host", _PIECE)))
        self._chain = hashlib.sha256(b"gpusnap").digest()

    @property
    def seed(self) -> int:
        """What the next kernel starts from."""
        return int.from_bytes(self._chain[:_WORD], "little")

    def absorb(self, step: int, window: bytes) -> int:
        """Take in what a kernel made of its window; gives the checksum of the step."""
        start = step * 7919 % (len(self.memory) // len(window)) * len(window)
        own = self.memory[start : start + len(window)]
        self.memory[start : start + len(window)] = bytes(map(int.__xor__, own, window))
        self._chain = hashlib.sha256(self._chain + own + window).digest()
        return zlib.crc32(self._chain)


def window_of(step: int, size: int) -> int:
    """Offset of the window that a step works on."""
    return step * 7919 % (size // _WINDOW) * _WINDOW


class Gpu:
    """One GPU, its kernel and one buffer."""

    def __init__(self, ordinal: int, size: int) -> None:
        self._cuda = Libcuda()
        self._call = self._cuda.call
        self._call("cuInit", 0)
        self._call("cuCtxSetCurrent", self._context(ordinal))
        module = self._new("CUmodule *", "cuModuleLoadData", kernel.PTX.encode() + b"\0")
        name = kernel.NAME.encode()
        self._kernel = self._new("CUfunction *", "cuModuleGetFunction", module, name)
        self._buffer = int(self._new("CUdeviceptr *", "cuMemAlloc", size))

    def _context(self, ordinal: int) -> _Pointer:
        device = self._new("CUdevice *", "cuDeviceGet", ordinal)
        return self._new("CUcontext *", "cuDevicePrimaryCtxRetain", device)

    def _new(self, kind: str, function: str, *arguments: object) -> _Pointer:
        """Call a function that gives something through its first argument."""
        result: _Pointer = ffi.new(kind)
        self._call(function, result, *arguments)
        return result[0]

    def write(self, offset: int, data: bytes) -> None:
        """Copy bytes into the buffer."""
        self._call("cuMemcpyHtoD", self._buffer + offset, ffi.from_buffer(data), len(data))

    def read(self, offset: int, size: int) -> bytes:
        """Copy bytes out of the buffer."""
        data = bytearray(size)
        self._call("cuMemcpyDtoH", ffi.from_buffer(data), self._buffer + offset, size)
        return bytes(data)

    def mix(self, offset: int, seed: int, step: int) -> None:
        """Run the kernel on the window at an offset and wait for it."""
        count = _WINDOW // _WORD
        values: list[_Pointer] = [
            ffi.new("uint64_t *", self._buffer + offset),
            ffi.new("uint64_t *", seed),
            ffi.new("uint64_t *", step),
            ffi.new("uint32_t *", count),
        ]
        parameters = ffi.new("void *[]", values)
        grid, block = (count // _THREADS, 1, 1), (_THREADS, 1, 1)
        null = ffi.NULL
        self._call("cuLaunchKernel", self._kernel, *grid, *block, 0, null, parameters, null)
        self._call("cuCtxSynchronize")


def mix_on_host(memory: bytearray, offset: int, seed: int, step: int) -> None:
    """What the kernel does, in Python."""
    with memoryview(memory)[offset : offset + _WINDOW] as window, window.cast("Q") as words:
        for index, word in enumerate(words):
            key = (seed + index) & _MASK
            words[index] = ((word ^ key) * kernel.MIXER + step) & _MASK


def _line(step: int, checksum: int) -> str:
    return f"{step} {checksum:08x}\n"


def _last_line(pieces: Iterator[bytes], host: Host) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    digest.update(host.memory)
    return f"done {digest.hexdigest()}\n"


def reference_log(steps: int, memory: int = DEFAULT_MEMORY) -> str:
    """The log of a run of so many steps on so many bytes of device memory."""
    device = bytearray(b"".join(piece for _, piece in initial_bytes("device", memory)))
    host, lines = Host(), []
    for step in range(steps):
        offset = window_of(step, memory)
        mix_on_host(device, offset, host.seed, step)
        lines.append(_line(step, host.absorb(step, bytes(device[offset : offset + _WINDOW]))))
    return "".join(lines) + _last_line(iter([bytes(device)]), host)


def _compute(gpu: Gpu, steps: int, memory: int, step_us: int) -> Iterator[str]:
    """The lines of the log, as the GPU computes them."""
    host = Host()
    for step in range(steps):
        begin = time.monotonic()
        offset = window_of(step, memory)
        gpu.mix(offset, host.seed, step)
        yield _line(step, host.absorb(step, gpu.read(offset, _WINDOW)))
        time.sleep(max(0.0, begin + step_us / 1e6 - time.monotonic()))
    offsets = range(0, memory, _PIECE)
    yield _last_line((gpu.read(at, min(_PIECE, memory - at)) for at in offsets), host)


def run(log: Path, steps: int, memory: int, ordinal: int, step_us: int) -> None:
    """Compute on a GPU.

    Args:
        log: File the lines are appended to; a restore goes on with it.
        steps: How many.
        memory: Bytes of device memory, a multiple of 4096.
        ordinal: Which device, in CUDA's own order.
        step_us: Least duration of a step in microseconds.
    """
    gpu = Gpu(ordinal, memory)
    for offset, piece in initial_bytes("device", memory):
        gpu.write(offset, piece)
    # Appending and write-only: CRIU then lets the file be longer than it was at the dump.
    with log.open("ab", buffering=0) as file:
        for line in _compute(gpu, steps, memory, step_us):
            file.write(line.encode())


def _memory(text: str) -> int:
    size = int(text)
    if size <= 0 or size % _WINDOW:
        raise argparse.ArgumentTypeError(f"{size} is no positive multiple of {_WINDOW}")
    return size


def main() -> None:
    """Read the command line and compute."""
    parser = argparse.ArgumentParser(prog="python -m gpusnap_nvidia.program")
    parser.add_argument("log", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--memory", type=_memory, default=DEFAULT_MEMORY, metavar="BYTES")
    parser.add_argument("--device", type=int, default=0, metavar="ORDINAL")
    parser.add_argument("--step-us", type=int, default=10_000, metavar="MICROSECONDS")
    arguments = parser.parse_args()
    run(arguments.log, arguments.steps, arguments.memory, arguments.device, arguments.step_us)


if __name__ == "__main__":
    main()
