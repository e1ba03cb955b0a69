"""Image files in packs: they come back byte for byte, and what is known of them is not stored."""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusnap.datapath import (
    Compression,
    Filler,
    ImageFile,
    Kind,
    MemoryChange,
    Parent,
    Saved,
    Saver,
    Saving,
    Span,
    compare_memory,
)
from gpusnap.datapath.records import WITH_IMAGES, Index, decode_index, encode_index
from gpusnap.datapath.spans import Image
from gpusnap.errors import GpusnapError, IntegrityError, UsageError
from gpusnap.types import SavedMemory
from tests.datapath.memory import MIB, Memory
from tests.datapath.targets import check, silent

HEADER = 8
RAW = Saving(compression=Compression.NONE, workers=2)
INCREMENTAL = Saving(compression=Compression.NONE, workers=2, incremental=True)

Parts = Sequence[bytes]


def noise(length: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


def file(folder: Path, name: str, parts: Parts) -> ImageFile:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(b"".join(parts))
    return ImageFile(path=path, parts=tuple(map(len, parts)))


def save(
    files: Sequence[ImageFile],
    folder: Path,
    saving: Saving = RAW,
    parent: Path | None = None,
    spans: tuple[Span, ...] = (),
) -> SavedMemory:
    saver = Saver(folder, saving, None if parent is None else Parent(Saved(parent)))
    saver.copy(spans, silent, files)
    return saver.finish(silent)


def unpacked(folder: Path, into: Path, workers: int = 2) -> dict[str, bytes]:
    into.mkdir()
    Filler(folder, workers=workers).write_images(into, silent)
    return {path.name: path.read_bytes() for path in into.iterdir()}


def page_file(seed: int, *sizes: int) -> list[bytes]:
    return [noise(HEADER, seed), *(noise(size, seed + 1 + at) for at, size in enumerate(sizes))]


PART = st.tuples(st.integers(0, 3 * 4096), st.sampled_from(["noise", "zeros", "text"]))


def content(length: int, kind: str) -> bytes:
    return {"zeros": bytes(length), "text": b"gpu" * length}.get(kind, noise(length))[:length]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(PART, max_size=4), min_size=1, max_size=3),
    st.sampled_from([Compression.NONE, Compression.ZSTD, Compression.LZ4]),
    st.booleans(),
)
def test_every_file_comes_back(
    layout: list[list[tuple[int, str]]], compression: Compression, incremental: bool
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = [
            file(folder / "images", f"pages-{number}.img", [content(*part) for part in parts])
            for number, parts in enumerate(layout)
        ]
        saving = Saving(compression=compression, workers=2, budget=MIB, incremental=incremental)
        summary = save(files, folder / "regions", saving)
        check(folder / "regions")
        before = {each.path.name: each.path.read_bytes() for each in files}
        assert unpacked(folder / "regions", folder / "new") == before
    assert summary.images == sum(map(len, before.values()))


def test_large_files_beside_memory(tmp_path: Path) -> None:
    """Chunks end within parts, and no byte of a process is taken for one of a file."""
    memory = Memory(noise(3 * MIB))
    files = [
        file(tmp_path / "images", "a.img", [noise(8), noise(5 * MIB + 4096), b"", noise(100)]),
        file(tmp_path / "images", "b.img", [bytes(20 * MIB)]),
        file(tmp_path / "images", "c.img", []),
    ]
    summary = save(files, tmp_path / "regions", INCREMENTAL, spans=(memory.span,))
    filler = Filler(tmp_path / "regions")
    assert filler.spans == (memory.span,)
    assert filler.raw_bytes == 3 * MIB
    assert filler.images == tuple(each.image for each in files)
    found = unpacked(tmp_path / "regions", tmp_path / "new")
    assert found == {each.path.name: each.path.read_bytes() for each in files}
    assert (tmp_path / "new/b.img").stat().st_blocks * 512 < MIB, "zeros stay holes"
    assert summary.zero >= 20 * MIB
    assert summary.duplicates == 3 * MIB, "a.img's second part begins as the memory does"
    before = memory.content
    memory.lose()
    filler.fill(silent, verify=True)
    assert memory.content == before


def test_a_folder_without_images_stays_of_the_first_version(tmp_path: Path) -> None:
    memory = Memory(noise(MIB))
    save([], tmp_path / "plain", spans=(memory.span,))
    save([file(tmp_path / "images", "a.img", [b"x"])], tmp_path / "with")
    versions = [(tmp_path / name / "index").read_bytes()[8] for name in ("plain", "with")]
    assert versions == [1, WITH_IMAGES]
    assert Filler(tmp_path / "plain").images == ()


def test_a_buffer_that_came_in_front(tmp_path: Path) -> None:
    """What stands behind it is found again, for chunks begin anew at each part."""
    header, first, second = page_file(1, 3 * MIB + 4096, 2 * MIB)
    new = noise(8192, 9)
    a = file(tmp_path / "one", "pages.img", [header, first, second])
    b = file(tmp_path / "two", "pages.img", [noise(8, 5), new, first, second])
    save([a], tmp_path / "a", INCREMENTAL)
    summary = save([b], tmp_path / "b", INCREMENTAL, tmp_path / "a")
    assert summary.reused == len(first) + len(second)
    assert sum(use.raw for use in summary.codecs) == 4096 + len(new)
    assert unpacked(tmp_path / "b", tmp_path / "new") == {"pages.img": b.path.read_bytes()}


def test_what_differs(tmp_path: Path) -> None:
    parts = page_file(1, 2 * MIB, MIB, 100)
    changed = bytearray(parts[2])
    changed[5000] ^= 1
    other = [noise(8, 7), parts[1], bytes(changed), parts[3], noise(4096, 8)]
    old = file(tmp_path / "one", "gone.img", [noise(MIB, 3)])
    save([file(tmp_path / "one", "pages.img", parts), old], tmp_path / "a")
    save([file(tmp_path / "two", "pages.img", other)], tmp_path / "b")
    found = compare_memory(tmp_path / "a", tmp_path / "b", workers=2, progress=silent)
    assert [counts(each) for each in found] == [
        ("gone.img", 0, 0, 0, MIB, 0),
        ("pages.img", 0, 0, 8, 0, 0),
        ("pages.img", 8, 2 * MIB, 0, 0, 0),
        ("pages.img", 8 + 2 * MIB, MIB - 4096, 4096, 0, 0),
        ("pages.img", 8 + 3 * MIB, 100, 0, 0, 0),
        ("pages.img", 108 + 3 * MIB, 0, 0, 0, 4096),
    ]
    assert {(each.pid, each.kind) for each in found} == {(None, Kind.IMAGE)}


def counts(change: MemoryChange) -> tuple[str | None, int, int, int, int, int]:
    figures = (change.equal, change.changed, change.only_a, change.only_b)
    assert sum(figures) == change.length
    return (change.image, change.start, *figures)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_damaged_chunk_is_not_written(tmp_path: Path, workers: int) -> None:
    files = [file(tmp_path / "images", "pages.img", page_file(1, 4 * MIB))]
    save(files, tmp_path / "regions", Saving(compression=Compression.NONE, workers=1))
    pack = bytearray((tmp_path / "regions/000.pack").read_bytes())
    position = Saved(tmp_path / "regions").tables[0][2].position
    pack[position + 77] ^= 1
    (tmp_path / "regions/000.pack").write_bytes(pack)
    told = rf"000\.pack is damaged in the chunk at {position} \(pages\.img, byte {8 + MIB}\)"
    with pytest.raises(IntegrityError, match=told):
        unpacked(tmp_path / "regions", tmp_path / "new", workers)
    written = (tmp_path / "new/pages.img").read_bytes()
    assert written[8 + MIB : 8 + 2 * MIB] == bytes(MIB)


def test_a_full_disk(tmp_path: Path, mounted: Callable[[int], Path]) -> None:
    files = [file(tmp_path / "images", "pages.img", page_file(1, 4 * MIB))]
    save(files, tmp_path / "regions")
    with pytest.raises(GpusnapError, match="the disk is full"):
        unpacked(tmp_path / "regions", mounted(2048) / "new")


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    save([file(tmp_path / "images", "pages.img", [b"x"])], tmp_path / "regions")
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/pages.img").symlink_to(tmp_path / "precious")
    with pytest.raises(GpusnapError, match=r"Cannot write .*pages\.img"):
        Filler(tmp_path / "regions").write_images(tmp_path / "new", silent)
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize("length", [0, 4 * MIB + 7])
def test_a_file_that_shrinks_meanwhile(tmp_path: Path, length: int) -> None:
    saved = file(tmp_path / "images", "pages.img", page_file(1, 5 * MIB))
    os.truncate(saved.path, length)
    with pytest.raises(GpusnapError, match=r"Cannot read .*pages\.img"):
        save([saved], tmp_path / "regions")


def test_two_files_of_one_name(tmp_path: Path) -> None:
    files = [file(tmp_path / name, "a.img", [b"x"]) for name in ("one", "two")]
    with pytest.raises(UsageError, match="two images have one name"):
        save(files, tmp_path / "regions")


PAGES = Image("pages.img", 8)
WHOLE = Span(0, 0, 8, Kind.IMAGE)


@pytest.mark.parametrize(
    ("images", "spans", "said"),
    [
        ([Image("../a.img", 8)], [WHOLE], "cannot be called '../a.img'"),
        ([Image("", 8)], [WHOLE], "cannot be called ''"),
        ([Image("a\nb", 8)], [WHOLE], "cannot be called"),
        ([Image(".a", 8)], [WHOLE], "cannot be called"),
        ([Image("a.img", 1 << 63)], [Span(0, 0, 1 << 63, Kind.IMAGE)], "cannot have"),
        ([PAGES], [], "are not all of it"),
        ([Image("a.img", 9)], [WHOLE], "are not all of it"),
        ([PAGES], [WHOLE, Span(0, 4, 4, Kind.IMAGE)], "is not the next one"),
        ([PAGES], [Span(1, 0, 8, Kind.IMAGE)], "is not the next one"),
        ([PAGES], [Span(0, 4, 4, Kind.IMAGE)], "is not the next one"),
        ([PAGES, PAGES], [WHOLE, Span(1, 0, 8, Kind.IMAGE)], "have one name"),
    ],
)
def test_a_forged_index(tmp_path: Path, images: list[Image], spans: list[Span], said: str) -> None:
    save([file(tmp_path / "images", "pages.img", [noise(8)])], tmp_path / "regions")
    path = tmp_path / "regions/index"
    before = decode_index(path.read_bytes())
    path.write_bytes(encode_index(Index(tuple(spans), before.packs, (), tuple(images))))
    with pytest.raises(IntegrityError, match=said):
        Filler(tmp_path / "regions")
