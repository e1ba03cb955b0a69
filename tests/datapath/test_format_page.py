"""The format's page is enough to read saved memory: here is a reader made of it alone."""

import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import lz4.block

from gpusnap.datapath import Compression, Saving
from gpusnap.datapath.records import Codec
from tests.datapath.targets import Process, save

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PAGE = (Path(__file__).parents[2] / "docs/reference/snapshot-format.md").read_text()
SECTION = PAGE.partition("## Regions")[2].partition("\n## ")[0]


def sealed(data: bytes) -> bytes:
    assert int.from_bytes(data[-4:], "little") == zlib.crc32(data[:-4])
    return data[:-4]


def planes(data: bytes, width: int) -> bytes:
    size = len(data) // width
    numbers = bytearray(len(data))
    for plane in range(width):
        numbers[plane::width] = data[plane * size : (plane + 1) * size]
    return bytes(numbers)


DECODERS: dict[int, Callable[[bytes, int], bytes]] = {
    0: lambda data, _length: data,
    1: lambda data, length: lz4.block.decompress(data, uncompressed_size=length),
    2: lambda data, _length: zstd.decompress(data),
    3: lambda data, _length: planes(zstd.decompress(data), 2),
    4: lambda data, _length: planes(zstd.decompress(data), 4),
}


def tables(pack: bytes) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Spans and chunks, from the footer."""
    magic, version, spans, chunks, position, identifier = struct.unpack("<8sIIQQ16s", pack[-52:-4])
    assert (magic, version) == (b"GPUSFOOT", 1)
    header = sealed(pack[:4096])
    assert header == struct.pack("<8sII16s", b"GPUSPACK", 1, 0, identifier).ljust(4092, b"\0")
    footer = sealed(pack[position:])
    middle = 32 * spans
    assert len(footer) == middle + 40 * chunks + 48
    return (
        list(struct.iter_unpack("<QQqII", footer[:middle])),
        list(struct.iter_unpack("<QQIIIIII", footer[middle:-48])),
    )


def rebuild(folder: Path) -> dict[int, bytes]:
    """Memory by address, from packs without the index."""
    memory: dict[int, bytearray] = {}
    for path in sorted(folder.glob("*.pack")):
        pack = path.read_bytes()
        spans, chunks = tables(pack)
        for start, length, *_ in spans:
            memory.setdefault(start, bytearray(length))
        for offset, position, span, length, stored, codec, crc, stored_crc in chunks:
            extent = pack[position : position + -(-stored // 4096) * 4096]
            assert zlib.crc32(extent) == stored_crc
            data = DECODERS[codec](extent[:stored], length)
            assert zlib.crc32(data) == crc
            memory[spans[span][0]][offset : offset + length] = data
    return {start: bytes(data) for start, data in memory.items()}


def test_packs_are_enough(tmp_path: Path) -> None:
    with Process("text", "halves", "floats", "striped", "page") as process:
        for compression in Compression:
            folder = tmp_path / compression
            save(process.spans(), folder, Saving(compression=compression, workers=2))
            found = [rebuild(folder)[start] for start, _length in process.places]
            assert found == process.content()


def test_the_index_holds_the_tables_of_the_packs(tmp_path: Path) -> None:
    with Process("text", "striped") as process:
        save(process.spans(), tmp_path / "regions", Saving(workers=2, budget=1))
    data = sealed((tmp_path / "regions/index").read_bytes())
    magic, version, unit, spans, packs = struct.unpack("<8sIIII", data[:24])
    assert (magic, version, unit, spans) == (b"GPUSINDX", 1, 4096, 2)
    at = 24 + 32 * spans
    entries = list(struct.iter_unpack("<16sQQ", data[at : at + 32 * packs]))
    at += 32 * packs
    for number, (identifier, length, chunks) in enumerate(entries):
        pack = (tmp_path / f"regions/{number:03d}.pack").read_bytes()
        assert (pack[16:32], len(pack)) == (identifier, length)
        assert tables(pack)[1] == list(struct.iter_unpack("<QQIIIIII", data[at : at + 40 * chunks]))
        at += 40 * chunks
    assert at == len(data)


def test_every_codec_is_explained() -> None:
    assert SECTION
    rows = dict(re.findall(r"^\| (\d) \| `([a-z0-9-]+)` \|", SECTION, re.MULTILINE))
    assert rows == {str(int(codec)): codec.label for codec in Codec}
