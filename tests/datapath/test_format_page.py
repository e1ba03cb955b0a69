"""The format's page is enough to read saved memory: here is a reader made of it alone."""

import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import lz4.block
import pytest
from blake3 import blake3

from gpusnap.datapath import Compression, ImageFile, Saver, Saving
from gpusnap.datapath.records import Codec
from tests.datapath.targets import Process, save, silent

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


Table = list[tuple[int, ...]]


def tables(pack: bytes) -> tuple[Table, list[bytes], Table]:
    """Spans, records of chunks, and where each chunk was taken from, from the footer."""
    magic, version, spans, chunks, position, identifier = struct.unpack("<8sIIQQ16s", pack[-52:-4])
    assert (magic, version) == (b"GPUSFOOT", 1)
    header = sealed(pack[:4096])
    assert header == struct.pack("<8sII16s", b"GPUSPACK", 1, 0, identifier).ljust(4092, b"\0")
    footer = sealed(pack[position:])
    first, second = 32 * spans, 32 * spans + 60 * chunks
    assert len(footer) == second + 12 * chunks + 48
    return (
        list(struct.iter_unpack("<QQqII", footer[:first])),
        [footer[at : at + 60] for at in range(first, second, 60)],
        list(struct.iter_unpack("<QI", footer[second:-48])),
    )


def read_chunk(pack: bytes, record: bytes) -> bytes:
    position, length, stored, codec, crc, stored_crc, identity = struct.unpack("<QIIIII32s", record)
    extent = pack[position : position + -(-stored // 4096) * 4096]
    assert zlib.crc32(extent) == stored_crc
    data = DECODERS[codec](extent[:stored], length)
    assert zlib.crc32(data) == crc
    assert identity in {bytes(32), blake3(data).digest()}
    return data


def rebuild(folder: Path) -> dict[int, bytes]:
    """Memory by address, from packs without the index."""
    memory: dict[int, bytearray] = {}
    for path in sorted(folder.glob("*.pack")):
        pack = path.read_bytes()
        spans, chunks, origins = tables(pack)
        for start, length, *_ in spans:
            memory.setdefault(start, bytearray(length))
        for record, (offset, span) in zip(chunks, origins, strict=True):
            data = read_chunk(pack, record)
            memory[spans[span][0]][offset : offset + len(data)] = data
    return {start: bytes(data) for start, data in memory.items()}


def test_packs_are_enough(tmp_path: Path) -> None:
    with Process("text", "halves", "floats", "striped", "page") as process:
        for compression in Compression:
            folder = tmp_path / compression
            save(process.spans(), folder, Saving(compression=compression, workers=2))
            found = [rebuild(folder)[start] for start, _length in process.places]
            assert found == process.content()


def image_names(data: bytes) -> tuple[list[str], int]:
    """The table of images at the beginning, and where it ends."""
    (count,) = struct.unpack("<I", data[:4])
    names, at = [], 4
    for _ in range(count):
        length = data[at + 8]
        names.append(data[at + 9 : at + 9 + length].decode())
        at += 9 + length
    return names, at


def rebuild_by_index(folder: Path) -> dict[int | str, bytes]:
    """Memory by address, and image files by name, as the index says."""
    data = sealed((folder / "index").read_bytes())
    magic, version, unit, spans, packs, places = struct.unpack("<8sIIIIQ", data[:32])
    assert (magic, unit) == (b"GPUSINDX", 4096)
    names, more = image_names(data[32:]) if version == 2 else ([], 0)
    assert version == 1 or names
    data = data[:32] + data[32 + more :]
    at = 32 + 32 * spans
    rows = list(struct.iter_unpack("<QQqII", data[32:at]))
    memory = [(row, bytearray(-(-row[1] // 4096) * 4096)) for row in rows]
    entries = list(struct.iter_unpack("<16sQII", data[at : at + 32 * packs]))
    at += 32 * packs
    found: list[tuple[bytes, list[bytes]]] = []
    for number, (identifier, length, chunks, checksum) in enumerate(entries):
        pack = (folder / f"{number:03d}.pack").read_bytes()
        assert (pack[16:32], len(pack)) == (identifier, length)
        assert pack[-4:] == checksum.to_bytes(4, "little")
        records = [data[begin : begin + 60] for begin in range(at, at + 60 * chunks, 60)]
        assert records == tables(pack)[1]
        found.append((pack, records))
        at += 60 * chunks
    table = list(struct.iter_unpack("<QIII", data[at:]))
    assert len(table) == places
    for offset, span, pack_number, chunk in table:
        pack, records = found[pack_number]
        content = read_chunk(pack, records[chunk])
        memory[span][1][offset : offset + len(content)] = content
    rebuilt: dict[int | str, bytes] = {}
    for (start, length, _priority, owner, kind), held in memory:
        where = names[owner] if kind == 3 else start
        assert kind != 3 or start == len(rebuilt.get(where, b""))
        rebuilt[where] = rebuilt.get(where, b"") + bytes(held[:length])
    return rebuilt


@pytest.mark.parametrize("incremental", [False, True])
def test_the_index_says_where_all_memory_is(tmp_path: Path, incremental: bool) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    saving = Saving(workers=2, budget=1, incremental=incremental)
    with Process("text", "striped", "small", "small") as process:
        save(process.spans(), first, saving)
        save(process.spans(), second, saving, first)
        for folder in (first, second):
            memory = rebuild_by_index(folder)
            assert [memory[start] for start, _length in process.places] == process.content()


def test_the_index_says_where_image_files_are(tmp_path: Path) -> None:
    parts = [b"header--", bytes(5000), b"gpu" * (1 << 20)]
    file = ImageFile(path=tmp_path / "pages.img", parts=tuple(map(len, parts)))
    file.path.write_bytes(b"".join(parts))
    with Process("text") as process:
        saver = Saver(tmp_path / "regions", Saving())
        saver.copy(process.spans(), silent, [file])
        saver.finish(silent)
        found = rebuild_by_index(tmp_path / "regions")
        ((start, _length),) = process.places
        assert found == {start: process.content()[0], "pages.img": b"".join(parts)}


def test_every_codec_is_explained() -> None:
    assert SECTION
    rows = dict(re.findall(r"^\| (\d) \| `([a-z0-9-]+)` \|", SECTION, re.MULTILINE))
    assert rows == {str(int(codec)): codec.label for codec in Codec}
