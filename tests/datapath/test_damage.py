"""No flipped bit passes, nothing damaged is filled, no forged index is believed."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.datapath import Compression, Filler, Saved, Saving
from gpusnap.datapath.records import (
    CHUNK_RECORD,
    WITH_IMAGES,
    Chunk,
    FormatError,
    Index,
    decode_index,
    encode_index,
)
from gpusnap.errors import IncompatibleError, IntegrityError
from gpusnap.native import crc32
from tests.datapath.program import PAGE
from tests.datapath.targets import Process, check, save, silent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Saved with all codecs, by two workers; the process still stands there to be filled."""
    folder = tmp_path_factory.mktemp("saved") / "regions"
    with Process("text", "halves", "floats", "striped", "page") as process:
        saving = Saving(compression=Compression.ZSTD, workers=2, budget=1 << 20)
        save(process.spans(), folder, saving)
        while len(Saved(folder).packs) < 2:  # one worker was so late that there was no work left
            shutil.rmtree(folder)
            save(process.spans(), folder, saving)
        check(folder)
        restore(folder)
        yield folder


def restore(folder: Path) -> None:
    """Read what a restore reads: the saved memory itself only when it is written."""
    check(folder, placed=False)
    Filler(folder, workers=2).fill(silent)


def damaged(path: Path, data: bytes, read: Callable[[Path], None] = check) -> IntegrityError:
    """The error that a file of other bytes leads to; afterwards it is as it was."""
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        with pytest.raises(IntegrityError) as caught:
            read(path.parent)
    finally:
        path.write_bytes(before)
    return caught.value


@given(data=st.data())
def test_a_flipped_bit(folder: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    for read in (check, restore):
        error = damaged(path, bytes(content), read)
        assert error.text.startswith(str(path)), "it names the file"
        assert error.cure == "Restore another snapshot"


def test_a_flipped_bit_that_no_codec_looks_at(folder: Path) -> None:
    """Behind what is compressed are zeros up to the next page."""
    for located in (saved := Saved(folder)).located():
        chunk, path = located.chunk, saved.path(located.pack)
        if chunk.extent > chunk.stored:
            content = bytearray(path.read_bytes())
            content[chunk.position + chunk.extent - 1] ^= 1
            error = damaged(path, bytes(content), restore)
            assert f"the chunk at {chunk.position} " in error.text


@given(data=st.data())
def test_another_length(folder: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = path.read_bytes()
    cut = data.draw(st.integers(0, len(content) - 1))
    more = data.draw(st.binary(min_size=1, max_size=2 * PAGE))
    damaged(path, content[:cut])
    damaged(path, content + more)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "regions"))


@pytest.mark.parametrize("name", ["index", "000.pack", "001.pack"])
def test_a_missing_file(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(IntegrityError, match=name):
        check(copied)


def test_a_link_is_not_followed(copied: Path) -> None:
    (copied / "000.pack").rename(copied / "elsewhere")
    (copied / "000.pack").symlink_to("elsewhere")
    with pytest.raises(IntegrityError, match=r"000\.pack"):
        check(copied)


def test_packs_changed_places(copied: Path) -> None:
    (copied / "000.pack").rename(copied / "a")
    (copied / "001.pack").rename(copied / "000.pack")
    (copied / "a").rename(copied / "001.pack")
    with pytest.raises(IntegrityError, match=r"pack is damaged"):
        check(copied)


def test_a_newer_version(copied: Path) -> None:
    index = copied / "index"
    data = bytearray(index.read_bytes()[:-4])
    data[8] = WITH_IMAGES + 1
    index.write_bytes(bytes(data) + crc32(data).to_bytes(4, "little"))
    with pytest.raises(IncompatibleError, match="newer gpusnap") as caught:
        check(copied)
    assert caught.value.cure == "Upgrade gpusnap"


@given(st.binary(max_size=300))
def test_any_bytes_as_an_index(data: bytes) -> None:
    body = b"GPUSINDX" + data
    sealed = body + crc32(body).to_bytes(4, "little")
    for each in (data, body, sealed):
        with pytest.raises(FormatError):
            _ = decode_index(each)


@pytest.mark.parametrize(
    "counts", [(0xFFFFFFFF, 0, 0), (0, 0xFFFFFFFF, 0), (0, 0, 0xFFFFFFFF), (1, 1, 1)]
)
def test_counts_are_not_believed(counts: tuple[int, ...]) -> None:
    body = b"GPUSINDX" + b"".join(number.to_bytes(4, "little") for number in (1, PAGE, *counts, 0))
    with pytest.raises(FormatError, match="longer than the file"):
        _ = decode_index(body + crc32(body).to_bytes(4, "little"))


NUMBERS = st.one_of(st.integers(0, 5 * PAGE), st.sampled_from([2**31, 2**32 - 1]))


def other(index: Index, data: st.DataObject) -> Index:
    """The index with one field of one chunk set to another number."""
    packs = list(index.packs)
    number = data.draw(st.integers(0, len(packs) - 1))
    pack = packs[number]
    chunks = pack.chunks()
    at = data.draw(st.integers(0, len(chunks) - 1))
    field = data.draw(st.sampled_from(Chunk._fields))
    values = st.binary(min_size=32, max_size=32) if field == "identity" else NUMBERS
    value = data.draw(values.filter(lambda value: value != getattr(chunks[at], field)))
    fields = chunks[at]._asdict() | {field: value}
    record = Chunk(**fields).encode()
    begin = at * CHUNK_RECORD
    records = pack.records[:begin] + record + pack.records[begin + CHUNK_RECORD :]
    packs[number] = msgspec.structs.replace(pack, records=records)
    return Index(index.spans, tuple(packs), index.places)


@given(data=st.data())
def test_a_forged_index(folder: Path, data: st.DataObject) -> None:
    """Its checksum fits, what it says does not."""
    index = decode_index((folder / "index").read_bytes())
    damaged(folder / "index", encode_index(other(index, data)))


@pytest.fixture
def process() -> Iterator[Process]:
    with Process("small") as process:
        yield process


@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_chunk_is_not_written(process: Process, tmp_path: Path, workers: int) -> None:
    before = process.content()[0]
    folder = tmp_path / "regions"
    save(process.spans(), folder, Saving(compression=Compression.NONE, workers=1))
    process.lose()
    pack = bytearray((folder / "000.pack").read_bytes())
    position = Saved(folder).tables[0][1].position
    pack[position + 5000] ^= 1
    (folder / "000.pack").write_bytes(pack)
    with pytest.raises(IntegrityError, match=rf"000\.pack is damaged in the chunk at {position}"):
        Filler(folder, workers=workers).fill(silent)
    after = process.content()[0]
    chunk = slice(1 << 20, 2 << 20)
    assert after[chunk] == bytes(1 << 20)
    assert before[chunk] != after[chunk]
