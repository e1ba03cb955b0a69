"""Sound bytes to begin from."""

import ctypes
import mmap
import os
import random
import struct
import tempfile
from pathlib import Path

from gpusnap.criu import images_pb2
from gpusnap.criu.images import COMMON_MAGIC, INVENTORY_MAGIC, TREE_MAGIC
from gpusnap.datapath import Compression, ImageFile, Kind, Saver, Saving, Span
from gpusnap.repository.manifest import encode
from tests.hostile.targets import silent
from tests.repository.test_manifest import FULL, PARTED

MANIFESTS = (encode(FULL), encode(PARTED))


def _content() -> bytes:
    words = b"".join(struct.pack("<f", number / 7) for number in range(4096))
    return random.Random(1).randbytes(1 << 14) + b"gpusnap " * (1 << 11) + words + bytes(1 << 14)


def saved(incremental: bool = False) -> dict[str, bytes]:
    """Regions of this very process: an index and its packs, some chunks of each codec.

    Incremental ones hold image files too.
    """
    content = _content()
    with tempfile.TemporaryDirectory() as name, mmap.mmap(-1, len(content)) as memory:
        memory[:] = content
        view = ctypes.c_char.from_buffer(memory)
        start, folder = ctypes.addressof(view), Path(name, "regions")
        half = len(content) // 2
        spans = [Span(os.getpid(), start + at, half, Kind.HOST) for at in (0, half)]
        saving = Saving(compression=Compression.ZSTD, workers=1, incremental=incremental)
        saver = Saver(folder, saving)
        image = Path(name, "pages.img")
        image.write_bytes(bytes(8) + content[: 1 << 15])
        file = ImageFile(path=image, parts=(8, 1 << 14, 1 << 14))
        saver.copy(spans, silent, [file] if incremental else [])
        saver.finish(silent)
        del view
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def _framed(*entries: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(entry)) + entry for entry in entries)


def _inventory() -> bytes:
    entry = images_pb2.Inventory(img_version=2)
    entry.plugins_entry.plugins.extend(("cuda_plugin", "gpusnap_guard"))
    return INVENTORY_MAGIC + _framed(entry.SerializeToString())


def tree(*pids: int) -> bytes:
    """CRIU's list of processes."""
    entries = [images_pb2.TreeEntry(pid=pid).SerializeToString() for pid in pids]
    return COMMON_MAGIC + TREE_MAGIC + _framed(*entries)


IMAGES = {"inventory.img": _inventory(), "pstree.img": tree(7, 8, 9)}
