"""Which pages of a process another one uses too: those that a fork left to be copied on write.

Each page has a word in ``/proc/PID/pagemap``, whose bit 56 says that the page is in the memory of
one process alone (Linux 4.2, Documentation/admin-guide/mm/pagemap.rst).
"""

import errno
import os
import re
import sys
from collections.abc import Iterator

from gpusnap.native.fault import fault, opened
from gpusnap.native.pagemap import PAGE, populated_runs

_WORD = 8
_WORDS = 1 << 16
_TOP = slice(_WORD - 1 if sys.byteorder == "little" else 0, None, _WORD)
"""The highest byte of each word, which has all the bits that matter."""

_PRESENT, _SWAPPED, _ALONE = 1 << 7, 1 << 6, 1 << 0
_SHARED = bytes(
    top for top in range(256) if top & _SWAPPED or (top & _PRESENT and not top & _ALONE)
)
_OTHERS = bytes(top for top in range(256) if top not in _SHARED)
_RUNS = re.compile(b"[%b]+" % re.escape(_SHARED))


def shared_runs(pid: int, start: int, length: int) -> Iterator[tuple[int, int]]:
    """Find the pages of private memory that another process uses too.

    Of a page that is swapped out the kernel does not tell, so it counts as shared. The kernel's
    own page of zeroes does not, nor do guard regions, where the kernel can name them (Linux 6.7
    and 6.15); before, they count as shared.

    Args:
        pid: The process.
        start: Address, a multiple of the page size.
        length: In bytes, a multiple of the page size.

    Yields:
        Runs of such pages as (address, length), ascending.

    Raises:
        MemoryFault: There is no such process, or it ended meanwhile, or may not be looked at.
        UsageError: Start or length is no multiple of the page size.
    """
    populated = populated_runs(pid, start, length)
    with opened(pid, "pagemap", start) as pagemap:
        for address, size in populated:
            try:
                yield from _shared(pagemap, address, address + size)
            except OSError as error:
                raise fault(pid, address, error) from error


def _shared(pagemap: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    for address in range(start, end, _WORDS * PAGE):
        count = min(_WORDS, (end - address) // PAGE)
        words = os.pread(pagemap, count * _WORD, address // PAGE * _WORD)
        if len(words) < count * _WORD:  # a process that ended has no pages
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        tops = words[_TOP]
        if not tops.translate(None, _OTHERS):  # most memory is of one process: this is quicker
            continue
        for run in _RUNS.finditer(tops):
            yield address + run.start() * PAGE, (run.end() - run.start()) * PAGE
