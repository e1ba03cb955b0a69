"""Saves memory past CRIU, of processes or in image files, and puts it back: fast and checked."""

from gpusnap.datapath.checker import Checked, check_packs
from gpusnap.datapath.codecs import Compression
from gpusnap.datapath.compare import MemoryChange, compare_memory
from gpusnap.datapath.disk import Disk, try_disk
from gpusnap.datapath.filler import Filler
from gpusnap.datapath.identities import Parent
from gpusnap.datapath.images import ImageFile
from gpusnap.datapath.records import CHUNK, Pack, pack_name
from gpusnap.datapath.reserve import Reserve
from gpusnap.datapath.saved import Saved
from gpusnap.datapath.saver import Saver, Saving
from gpusnap.datapath.spans import Kind, Span
from gpusnap.datapath.subset import Subset, parse_subset

__all__ = [
    "CHUNK",
    "Checked",
    "Compression",
    "Disk",
    "Filler",
    "ImageFile",
    "Kind",
    "MemoryChange",
    "Pack",
    "Parent",
    "Reserve",
    "Saved",
    "Saver",
    "Saving",
    "Span",
    "Subset",
    "check_packs",
    "compare_memory",
    "pack_name",
    "parse_subset",
    "try_disk",
]
