"""What hostile bytes are fed to. Whatever they are, each function ends quietly, or the code is at
fault: it raised something that is no sentence for the user.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gpusnap.checks import check_device_memory
from gpusnap.cli._messages import snapshot_row
from gpusnap.compatibility import check_host, check_new_pids
from gpusnap.criu import inventory_plugins
from gpusnap.criu.images import tree_pids
from gpusnap.datapath import Filler, Saved, check_packs
from gpusnap.datapath.codecs import decode as decode_chunk
from gpusnap.datapath.records import CHUNK, FormatError
from gpusnap.errors import GpusnapError
from gpusnap.native import crc32
from gpusnap.repository import Snapshot
from gpusnap.repository.manifest import decode, encode
from gpusnap.testing.compatibility import compare_devices
from gpusnap.types import DeviceMap
from gpusnap_nvidia.match import compatible

PATH = Path("/nowhere/repository/one/manifest.json")


def manifest(data: bytes) -> None:
    """Read a manifest and do with it what listings and the checks of a restore do."""
    with suppress(GpusnapError):
        snapshot = Snapshot(PATH.parent, decode(data, PATH))
        found = snapshot.manifest
        assert decode(encode(found), PATH) == found
        msgspec.json.encode(snapshot_row(snapshot))
        assert snapshot.created.tzinfo is not None
        tuple(check_host(snapshot))
        tuple(check_new_pids(snapshot))
        for compare in (compare_devices, compatible):
            if isinstance(answer := compare(found.devices, found.devices), DeviceMap):
                uses = found.device_regions.uses if found.device_regions is not None else ()
                tuple(check_device_memory(uses, answer, found.devices))


@contextmanager
def folder_of(files: dict[str, bytes]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpusnap-hostile-") as name:
        for path, data in files.items():
            Path(name, path).write_bytes(data)
        yield Path(name)


def sealed(data: bytes) -> bytes:
    """The same with the checksum at the end put right, as a forger would."""
    return data[:-4] + crc32(data[:-4]).to_bytes(4, "little")


def regions(files: dict[str, bytes]) -> None:
    """Read an index and its packs, and unpack images: all but the writing into processes."""
    with folder_of(files) as folder, suppress(GpusnapError):
        filler, saved = Filler(folder), Saved(folder)
        assert filler.raw_bytes >= 0
        assert all(span.pid > 0 for span in filler.spans)
        checked = check_packs(saved, range(len(saved.packs)), workers=1, progress=silent)
        assert checked.bytes <= sum(map(len, files.values()))
        unpacked = folder / "unpacked"
        unpacked.mkdir()
        before = sorted(folder.iterdir())
        with suppress(GpusnapError):
            filler.write_images(unpacked, silent)
        assert sorted(folder.iterdir()) == before


def silent(_done: int, _total: int) -> None:
    """Progress that nobody looks at."""


def chunk(codec: int, data: bytes, length: int) -> None:
    """Decode what a pack holds of a chunk: never to more than the chunk's length."""
    with suppress(FormatError):
        assert len(decode_chunk(codec, memoryview(data), length)) == length


LONGEST = CHUNK


def images(files: dict[str, bytes]) -> None:
    """Read CRIU's list of processes and its inventory."""
    with folder_of(files) as folder:
        for read in (inventory_plugins, tree_pids):
            with suppress(GpusnapError):
                read(folder)


def examples(fewest: int) -> int:
    """How many inputs a test tries: more where ``GPUSNAP_FUZZ`` says by how much."""
    return fewest * int(os.environ.get("GPUSNAP_FUZZ", "1"))
