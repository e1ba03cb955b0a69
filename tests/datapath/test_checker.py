"""All damage is told, chunk by chunk, and a part can be read instead of all."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.datapath import (
    Checked,
    Compression,
    Saved,
    Saving,
    Subset,
    check_packs,
    checker,
    parse_subset,
    reading,
)
from gpusnap.datapath.files import read_exactly
from gpusnap.datapath.records import pack_name
from gpusnap.errors import UsageError
from gpusnap.native import crc32
from tests.datapath.memory import MIB, Memory
from tests.datapath.targets import save, silent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "regions"
    memory = Memory(os.urandom(12 * MIB))
    save((memory.span,), folder, Saving(compression=Compression.NONE, workers=2, budget=MIB))
    return folder


def look(folder: Path, subset: Subset | None = None) -> Checked:
    saved = Saved(folder)
    packs = range(len(saved.packs))
    return check_packs(saved, packs, workers=2, progress=silent, subset=subset)


def flip(path: Path, *places: int) -> None:
    data = bytearray(path.read_bytes())
    for at in places:
        data[at] ^= 1
    path.write_bytes(data)


def test_all_damaged_chunks_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Saved(folder)
    wanted = [(each.pack, each.chunk.position) for each in saved.located()]
    for pack, position in wanted:
        flip(saved.path(pack), position + 7)
    found = look(folder)
    assert [(each.pack, each.position) for each in found.damages] == wanted
    assert found.more == 0
    monkeypatch.setattr(checker, "MOST", 5)
    bounded = look(folder)
    assert (len(bounded.damages), bounded.more) == (5, len(wanted) - 5)
    for pack, position in wanted:
        flip(saved.path(pack), position + 7)
    assert look(folder).damages == ()


def test_header_and_footer(folder: Path) -> None:
    path = folder / "000.pack"
    for at in (0, 20, 100, 4095, path.stat().st_size - 1, path.stat().st_size - 100):
        flip(path, at)
        (damage,) = look(folder).damages
        assert (damage.pack, damage.position) == (0, None)
        flip(path, at)


def test_the_footer_of_another_pack(folder: Path, tmp_path: Path) -> None:
    """It fits its own checksum and the length, and not the index."""
    other = tmp_path / "regions"
    shutil.copytree(folder, other)
    pack = Saved(folder).packs[0]
    path = other / "000.pack"
    data = path.read_bytes()
    footer = data[footer_position(data) : -4].replace(pack.id, bytes(16))
    assert footer.endswith(bytes(16))
    path.write_bytes(data[: footer_position(data)] + footer + crc32(footer).to_bytes(4, "little"))
    (damage,) = look(other).damages
    assert damage.words == "is damaged: its footer is not that of the pack in the index"


def footer_position(pack: bytes) -> int:
    return int.from_bytes(pack[-28:-20], "little")


def test_what_the_disk_does_not_give_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Saved(folder).tables[0][1].position

    def read(descriptor: int, buffer: memoryview, position: int) -> None:
        first = Path(f"/proc/self/fd/{descriptor}").readlink().name == pack_name(0)
        if first and position <= bad < position + len(buffer):
            raise OSError(errno.EIO, "Input/output error")
        read_exactly(descriptor, buffer, position)

    monkeypatch.setattr(reading, "put_extents", lambda *_: 0)
    monkeypatch.setattr(reading, "read_exactly", read)
    monkeypatch.setattr(reading, "_BATCH", 4 * MIB)
    (damage,) = look(folder).damages
    assert damage.position == bad
    assert damage.words.endswith("it cannot be read: Input/output error")


def test_a_missing_pack(folder: Path) -> None:
    (folder / "000.pack").rename(folder / "away")
    (damage,) = look(folder).damages
    (folder / "away").rename(folder / "000.pack")
    assert (damage.pack, damage.words) == (0, "cannot be read: No such file or directory")


def test_a_part_of_it(folder: Path) -> None:
    saved = Saved(folder)
    everything = look(folder).bytes
    frames = everything - sum(each.chunk.extent for each in saved.located())
    parts = [look(folder, Subset(part=part, of=5)).bytes - frames for part in range(1, 6)]
    assert sum(parts) + frames == everything
    assert look(folder, Subset(percent=100)).bytes == everything
    assert frames < look(folder, Subset(percent=30)).bytes < 0.5 * everything


@given(items=st.lists(st.integers()), of=st.integers(1, 20))
def test_all_parts_are_everything(items: list[int], of: int) -> None:
    chosen = [Subset(part=part, of=of).choose(items) for part in range(1, of + 1)]
    assert sorted(item for part in chosen for item in part) == sorted(items)
    assert Subset(part=1, of=of).choose(items) == chosen[0]


@given(items=st.lists(st.integers(), unique=True), percent=st.floats(0.01, 100))
def test_a_share(items: list[int], percent: float) -> None:
    chosen = Subset(percent=percent).choose(items)
    assert len(items) * percent / 100 <= len(chosen) <= len(items) * percent / 100 + 1
    assert chosen == [item for item in items if item in chosen]


@pytest.mark.parametrize(
    ("text", "subset"),
    [
        ("10%", Subset(percent=10)),
        ("2.5%", Subset(percent=2.5)),
        ("100%", Subset(percent=100)),
        ("2/7", Subset(part=2, of=7)),
        ("1/1", Subset()),
    ],
)
def test_subsets(text: str, subset: Subset) -> None:
    assert parse_subset(text) == subset


@pytest.mark.parametrize(
    "text", ["", "10", "0%", "101%", "-5%", "nan%", "0/5", "6/5", "1/0", "a/b", "1/2/3", "10 %"]
)
def test_no_subsets(text: str) -> None:
    with pytest.raises(UsageError, match="no part of the data"):
        parse_subset(text)
