"""Which pages of a process hold anything, asked of the kernel: ``/proc/PID/pagemap``.

Linux 6.7 brought the PAGEMAP_SCAN request, which answers in ranges and knows the zero page
(include/uapi/linux/fs.h, Documentation/admin-guide/mm/pagemap.rst). Older kernels give a word a
page. Guard regions (Linux 6.13) hold nothing; which pages are such is told from 6.15 on.
"""

import errno
import fcntl
import os
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator

from gpusnap.errors import UsageError
from gpusnap.native.extension import EXTENSION, Extension
from gpusnap.native.fault import ENDED, MemoryFault, fault, opened
from gpusnap.native.pages import runs

PAGE = os.sysconf("SC_PAGE_SIZE")

_SCAN = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg)
_PRESENT, _SWAPPED, _PFNZERO, _GUARD = 1 << 3, 1 << 4, 1 << 5, 1 << 8
# struct pm_scan_arg. In it stand: its size, flags, start, end, walk_end, vec, vec_len, max_pages;
# then the masks category_inverted, category_mask, category_anyof_mask, return_mask.
_ARGUMENT = struct.Struct("=12Q")
_WALK_END = 4
_REGION_WORDS = 3  # struct page_region: start, end, categories
_REGIONS = 512

_WORD = 8
_WORDS = 1 << 15
_HELD = 1 << 63 | 1 << 62  # present, swapped
_GUARD_WORD = 1 << 58


def is_guard(pagemap: int, address: int) -> bool:
    """Tell whether a page lies in a guard region; false where the kernel does not know."""
    word = os.pread(pagemap, _WORD, address // PAGE * _WORD)
    return len(word) == _WORD and bool(int.from_bytes(word, sys.byteorder) & _GUARD_WORD)


def _scan(pagemap: int, start: int, end: int, without: int) -> Iterator[tuple[int, int]]:
    """Ask for ranges; raises OSError with ENOTTY or EINVAL where the kernel cannot."""
    regions = array("Q", bytes(_REGIONS * _REGION_WORDS * _WORD))
    place = regions.buffer_info()[0]
    masks = (without, without, _PRESENT | _SWAPPED, 0)
    while start < end:
        head = (_ARGUMENT.size, 0, start, end, 0)
        argument = bytearray(_ARGUMENT.pack(*head, place, _REGIONS, 0, *masks))
        count = fcntl.ioctl(pagemap, _SCAN, argument)
        for at in range(0, count * _REGION_WORDS, _REGION_WORDS):
            yield regions[at], regions[at + 1] - regions[at]
        start = _ARGUMENT.unpack(argument)[_WALK_END]


def _held_in_c(extension: Extension, words: bytes) -> list[tuple[int, int]]:
    lib, ffi = extension
    count = len(words) // _WORD
    found = ffi.new("struct gpusnap_run[]", count // 2 + 1)
    with ffi.from_buffer("uint64_t[]", words) as view:
        number = lib.gpusnap_held_pages(view, count, PAGE, found, count // 2 + 1)
    return [(run.offset, run.length) for run in found[0:number]]


def _held(words: bytes) -> list[tuple[int, int]]:
    """Find the runs of pages whose words say that they hold something, from address 0."""
    if EXTENSION:
        return _held_in_c(EXTENSION, words)
    held = (bool(word & _HELD) and not word & _GUARD_WORD for word in array("Q", words))
    return list(runs(held, PAGE, len(words) // _WORD * PAGE))


def _read(pagemap: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Read the words of the pages, for kernels that cannot be asked for ranges."""
    while start < end:
        size = min(_WORDS, (end - start) // PAGE) * _WORD
        words = os.pread(pagemap, size, start // PAGE * _WORD)
        if len(words) < _WORD:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        yield from ((start + offset, length) for offset, length in _held(words))
        start += len(words) // _WORD * PAGE


def _joined(found: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Make one of runs that touch."""
    result: list[tuple[int, int]] = []
    for run in found:
        if result and sum(result[-1]) == run[0]:
            before = result.pop()
            result.append((before[0], before[1] + run[1]))
        else:
            result.append(run)
    return result


def _find(pagemap: int, start: int, end: int) -> list[tuple[int, int]]:
    for without in (_PFNZERO | _GUARD, _PFNZERO):
        try:
            return _joined(_scan(pagemap, start, end, without))
        except OSError as error:
            if error.errno not in {errno.ENOTTY, errno.EINVAL}:
                raise
    return _joined(_read(pagemap, start, end))


def populated_runs(pid: int, start: int, length: int) -> list[tuple[int, int]]:
    """Find the pages of a process that hold anything: in memory or swapped out.

    Pages never touched, guard regions and, where the kernel tells, the kernel's own page of
    zeroes are left out: all of them read as zeroes.

    Args:
        pid: The process.
        start: Address, a multiple of the page size.
        length: In bytes, a multiple of the page size; parts that are not mapped hold nothing.

    Returns:
        Runs of such pages as (address, length), ascending, none next to another.

    Raises:
        MemoryFault: There is no such process, or it ended meanwhile, or may not be looked at.
        UsageError: Start or length is no multiple of the page size.
    """
    if start % PAGE or length % PAGE:
        raise UsageError(f"Not on pages of {PAGE} bytes: {length} bytes at {start:#x}")
    with opened(pid, "pagemap", start) as pagemap:
        try:
            found = _find(pagemap, start, start + length)
            # A process that ended has no pages at all, which must not be taken for an answer.
            alive = os.pread(pagemap, _WORD, start // PAGE * _WORD)
        except OSError as error:
            raise fault(pid, start, error) from error
    if not alive:
        raise MemoryFault(pid, start, ENDED)
    return found


def guard_page_among(pid: int, ranges: Iterable[tuple[int, int]]) -> int | None:
    """Find a range that has a guard page.

    Args:
        pid: The process.
        ranges: Start and end of each, multiples of the page size.

    Returns:
        The start of the first such range; None where there is none, or the kernel does not know.

    Raises:
        MemoryFault: There is no such process, or it ended meanwhile, or may not be looked at.
    """
    region = array("Q", bytes(_REGION_WORDS * _WORD))
    with opened(pid, "pagemap", 0) as pagemap:
        for start, end in ranges:
            head = (_ARGUMENT.size, 0, start, end, 0, region.buffer_info()[0], 1, 1)
            argument = bytearray(_ARGUMENT.pack(*head, 0, _GUARD, 0, 0))
            try:
                if fcntl.ioctl(pagemap, _SCAN, argument) > 0:
                    return start
            except OSError as error:
                if error.errno in {errno.ENOTTY, errno.EINVAL}:
                    return None
                raise fault(pid, start, error) from error
    return None
