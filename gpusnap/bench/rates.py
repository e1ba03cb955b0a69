"""How fast memory is copied and summed up here, by one thread and by several."""

import ctypes
import itertools
import mmap
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Sequence

from gpusnap import native
from gpusnap.bench.report import Native, Rates

_PIECE = 1 << 20
"""Bytes of one call, as many as in a chunk of a snapshot."""

_ROOM = 16 << 20
"""Bytes of a thread's buffer, as many as in those that gpusnap copies into."""

_LONGEST = 512 << 20
"""More memory would not change a rate."""

REPEATS = 7


class _Source:
    """Memory of another process, and as much of this one for the copies within it."""

    def __init__(self, pid: int, address: int, length: int) -> None:
        self.pid = pid
        self.address = address
        self.length = length
        self.own = _room(length)
        native.read_process(pid, address, self.own)


def _room(length: int) -> memoryview:
    """Memory in huge pages, as that of gpusnap's buffers."""
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)


_Work = Callable[[_Source, int, memoryview], object]
"""Takes one piece: where it begins in the source, and a buffer of its length."""


def _memcpy(source: _Source, offset: int, buffer: memoryview) -> None:
    piece = source.own[offset : offset + len(buffer)]
    here, there = (ctypes.c_char.from_buffer(view) for view in (buffer, piece))
    ctypes.memmove(ctypes.addressof(here), ctypes.addressof(there), len(buffer))


def _readv(source: _Source, offset: int, buffer: memoryview) -> None:
    native.read_process(source.pid, source.address + offset, buffer, checksum=False)


def _copy_crc(source: _Source, offset: int, buffer: memoryview) -> None:
    native.read_process(source.pid, source.address + offset, buffer)


def _zlib_crc32(source: _Source, offset: int, buffer: memoryview) -> None:
    zlib.crc32(source.own[offset : offset + len(buffer)])


def _crc32(source: _Source, offset: int, buffer: memoryview) -> None:
    native.crc32(source.own[offset : offset + len(buffer)])


_KINDS: dict[str, _Work] = {
    "memcpy": _memcpy,
    "readv": _readv,
    "copy_crc": _copy_crc,
    "zlib_crc32": _zlib_crc32,
    "crc32": _crc32,
}


def measure_native(pid: int, address: int, length: int, threads: int) -> Native:
    """Measure by one thread and by several.

    Args:
        pid: A process that stands still meanwhile.
        address: Where memory of it begins that is there.
        length: Its bytes; no more than a part of it is used.
        threads: How many are several.
    """
    length = min(length, _LONGEST) // _PIECE * _PIECE
    source = _Source(pid, address, length)
    single, parallel = _rates(source, 1), _rates(source, threads)
    return Native(
        copy_crc_over_readv=parallel.copy_crc_over_readv,
        bytes=length,
        repeats=REPEATS,
        single=single,
        parallel=parallel,
    )


def _rates(source: _Source, threads: int) -> Rates:
    buffers = [_room(_ROOM) for _ in range(threads)]
    found: dict[str, list[float]] = {name: [] for name in _KINDS}
    for repeat in range(REPEATS + 1):
        # Forth and back, so that nothing always comes right after the same.
        for name in list(_KINDS) if repeat % 2 else reversed(_KINDS):
            seconds = _seconds(source, _KINDS[name], buffers)
            if repeat:  # the first one touches the buffers
                found[name].append(source.length / seconds)
    medians = {name: round(statistics.median(rates)) for name, rates in found.items()}
    pairs = zip(found["copy_crc"], found["readv"], strict=True)
    ratio = statistics.median(copy / readv for copy, readv in pairs)
    return Rates(threads=threads, copy_crc_over_readv=ratio, **medians)


def _seconds(source: _Source, work: _Work, buffers: Sequence[memoryview]) -> float:
    """Go over all of the source once; what is not its share a thread leaves to the others."""
    offsets = iter(range(0, source.length, _PIECE))
    lock = threading.Lock()

    def take() -> int | None:
        with lock:
            return next(offsets, None)

    def run(buffer: memoryview) -> None:
        for at in itertools.cycle(range(0, _ROOM, _PIECE)):
            offset = take()
            if offset is None:
                return
            work(source, offset, buffer[at : at + _PIECE])

    crew = [threading.Thread(target=run, args=(buffer,)) for buffer in buffers]
    begin = time.perf_counter()
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return time.perf_counter() - begin
