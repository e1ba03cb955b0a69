"""Memory of gpusnap's own: what is kept of it, and how often Python looks for what is left."""

import ctypes
import gc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_LARGE = 4 << 20
"""Bytes from which a block is given back: more than a codec makes of a chunk or needs for one."""

_MOST = 16 << 20
"""Bytes that a thread may have free: more than what waits for one write."""

_OBJECTS = 200_000
"""New ones between two looks: those of the index of 32 GiB."""


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


def collect_seldom() -> None:
    """Have Python look less often for objects that only refer to each other.

    An index has objects for every chunk, all of which it would go through again and again while
    they are made. Applies to the whole process as well.
    """
    gc.set_threshold(_OBJECTS)
