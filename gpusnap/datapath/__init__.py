"""Saves the memory of processes past CRIU and puts it back: fast, compressed, checked."""

from gpusnap.datapath.codecs import Compression
from gpusnap.datapath.filler import Filler
from gpusnap.datapath.saver import Saver, Saving
from gpusnap.datapath.spans import Kind, Span

__all__ = ["Compression", "Filler", "Kind", "Saver", "Saving", "Span"]
