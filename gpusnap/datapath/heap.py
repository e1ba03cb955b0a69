"""Memory that the C library keeps for the next chunk."""

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_LARGE = 4 << 20
"""Bytes from which a block is given back: more than a codec makes of a chunk or needs for one."""

_MOST = 16 << 20
"""Bytes that a thread may have free: more than what waits for one write."""


def keep_freed_memory() -> None:
    """Have the C library keep freed blocks of a chunk's size, which it else gives back at once.

    Codecs make a new block for every chunk. A block that comes from the kernel has to be made,
    filled with zeros and taken apart again page by page, and most of that with the interpreter's
    lock held, for which all other threads wait. Applies to the whole process, so that only a
    program of gpusnap's own may ask for it. Without glibc nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
    mallopt(_M_TRIM_THRESHOLD, _MOST)
