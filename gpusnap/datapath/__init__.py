"""Saves the memory of processes past CRIU and puts it back: fast, compressed, checked."""

from gpusnap.datapath.checker import Checked, check_packs
from gpusnap.datapath.codecs import Compression
from gpusnap.datapath.compare import MemoryChange, compare_memory
from gpusnap.datapath.disk import durable_cost
from gpusnap.datapath.filler import Filler
from gpusnap.datapath.identities import Parent
from gpusnap.datapath.records import Pack, pack_name
from gpusnap.datapath.saved import Saved
from gpusnap.datapath.saver import Saver, Saving
from gpusnap.datapath.spans import Kind, Span
from gpusnap.datapath.subset import Subset, parse_subset

__all__ = [
    "Checked",
    "Compression",
    "Filler",
    "Kind",
    "MemoryChange",
    "Pack",
    "Parent",
    "Saved",
    "Saver",
    "Saving",
    "Span",
    "Subset",
    "check_packs",
    "compare_memory",
    "durable_cost",
    "pack_name",
    "parse_subset",
]
