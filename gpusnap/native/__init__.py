"""What must be fast, in C; the one place that imports the compiled extension.

CRC-32, copies from and to the memory of another process, the search for pages that hold
anything, byte planes, and system calls inside another process. On a platform for which the
extension was not built each but the last does the same in Python, slowly. Large pieces are worked
on with the interpreter's lock released.
"""

from gpusnap.native.checksum import (
    PieceTable,
    crc32,
    crc32_chain,
    crc32_combine,
    implementations,
)
from gpusnap.native.extents import Extent, put_extents
from gpusnap.native.fault import MemoryFault
from gpusnap.native.injection import call_inside, same_file, share, vdso_of
from gpusnap.native.memory import read_process, write_process
from gpusnap.native.pagemap import guard_page_among, populated_runs
from gpusnap.native.pages import nonzero_pages
from gpusnap.native.pieces import Copied, Part, read_parts
from gpusnap.native.planes import join_planes, split_planes
from gpusnap.native.sharing import shared_runs
from gpusnap.native.straight import Outlet, Sent, Stored, copy_straight

__all__ = [
    "Copied",
    "Extent",
    "MemoryFault",
    "Outlet",
    "Part",
    "PieceTable",
    "Sent",
    "Stored",
    "call_inside",
    "copy_straight",
    "crc32",
    "crc32_chain",
    "crc32_combine",
    "guard_page_among",
    "implementations",
    "join_planes",
    "nonzero_pages",
    "populated_runs",
    "put_extents",
    "read_parts",
    "read_process",
    "same_file",
    "share",
    "shared_runs",
    "split_planes",
    "vdso_of",
    "write_process",
]
