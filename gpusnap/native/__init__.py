"""What must be fast, in C; the one place that imports the compiled extension.

CRC-32, copies from and to the memory of another process, the search for pages that hold
anything, and byte planes. On a platform for which the extension was not built each does the same
in Python, slowly. Large pieces are worked on with the interpreter's lock released.
"""

from gpusnap.native.checksum import crc32, crc32_combine, implementations
from gpusnap.native.fault import MemoryFault
from gpusnap.native.memory import read_process, write_process
from gpusnap.native.pagemap import populated_runs
from gpusnap.native.pages import nonzero_pages
from gpusnap.native.planes import join_planes, split_planes

__all__ = [
    "MemoryFault",
    "crc32",
    "crc32_combine",
    "implementations",
    "join_planes",
    "nonzero_pages",
    "populated_runs",
    "read_process",
    "split_planes",
    "write_process",
]
