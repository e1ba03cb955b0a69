"""CRIU's inventory and process list, whole and damaged."""

import os
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.criu import (
    OpenFile,
    abstract_names,
    advise_huge_pages,
    images_pb2,
    inventory_plugins,
    open_files,
)
from gpusnap.criu.images import (
    COMMON_MAGIC,
    FILES_MAGIC,
    INVENTORY_MAGIC,
    LARGEST,
    MEMORY_MAGIC,
    TREE_MAGIC,
    taken_pids,
    tree_pids,
)
from gpusnap.errors import IntegrityError


def _inventory(*plugins: str) -> bytes:
    entry = images_pb2.Inventory(img_version=2)
    entry.plugins_entry.plugins.extend(plugins)
    data = entry.SerializeToString()
    return INVENTORY_MAGIC + struct.pack("<I", len(data)) + data


def _tree(*pids: int) -> bytes:
    return _tree_of(*(images_pb2.TreeEntry(pid=pid) for pid in pids))


def _tree_of(*entries: images_pb2.TreeEntry) -> bytes:
    encoded = [entry.SerializeToString() for entry in entries]
    framed = [struct.pack("<I", len(entry)) + entry for entry in encoded]
    return COMMON_MAGIC + TREE_MAGIC + b"".join(framed)


def _memory(*mappings: tuple[int, int, int | None]) -> bytes:
    """Mappings from, to and with some advice, between fields that gpusnap does not know."""
    vmas = [images_pb2.Vma(start=start, end=end, madv=madv) for start, end, madv in mappings]
    known = images_pb2.Memory(vmas=vmas).SerializeToString()
    return b"\x08\x07" + known + b"\x78\x01"


def _framed(data: bytes) -> bytes:
    return COMMON_MAGIC + MEMORY_MAGIC + struct.pack("<I", len(data)) + data


@pytest.fixture
def mappings(tmp_path: Path) -> Path:
    """A link to the mappings of process 7, as in a folder for CRIU."""
    original = tmp_path / "original"
    original.write_bytes(_framed(_memory((0, 9, None), (16, 32, 1 << 10), (32, 48, None))))
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "mm-7.img").symlink_to(original)
    return folder


def test_huge_pages_are_advised_for_what_lies_in_a_range(mappings: Path) -> None:
    original = (mappings / "mm-7.img").resolve()
    before = original.read_bytes()
    advise_huge_pages(mappings, 7, [range(16, 40), range(8)])
    path = mappings / "mm-7.img"
    assert not path.is_symlink()
    data = path.read_bytes()
    assert data == _framed(data[12:])
    # Fields that are not known may come last, as CRIU reads them in any order
    assert b"\x08\x07" in data[12:]
    assert b"\x78\x01" in data[12:]
    found = images_pb2.Memory.FromString(data[12:]).vmas
    advice = [(each.start, each.end, each.madv) for each in found]
    assert advice == [(0, 9, 0), (16, 32, 1 << 10 | 1 << 14), (32, 48, 0)]
    assert [each.HasField("madv") for each in found] == [False, True, False]
    assert original.read_bytes() == before


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "does not begin"),
        (COMMON_MAGIC + MEMORY_MAGIC, "holds 0 entries, not one"),
        (_framed(b"") + struct.pack("<I", 0), "holds 2 entries, not one"),
        (_framed(_memory())[:-1], "is cut short"),
        (_framed(images_pb2.Memory(vmas=[]).SerializeToString() + b"\x72\x00"), "lacks a part"),
    ],
)
def test_damaged_mappings(mappings: Path, data: bytes, words: str) -> None:
    (mappings / "mm-7.img").resolve().write_bytes(data)
    with pytest.raises(IntegrityError, match=words):
        advise_huge_pages(mappings, 7, [range(64)])
    assert (mappings / "mm-7.img").is_symlink()


def test_very_many_mappings_are_left_as_they_are(mappings: Path) -> None:
    with (mappings / "mm-7.img").open("r+b") as image:
        image.truncate(LARGEST + 1)
    advise_huge_pages(mappings, 7, [range(64)])
    assert (mappings / "mm-7.img").is_symlink()


def test_no_mappings(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"mm-7\.img cannot be read: No such file"):
        advise_huge_pages(tmp_path, 7, [range(64)])


def test_plugins_are_read(tmp_path: Path) -> None:
    (tmp_path / "inventory.img").write_bytes(_inventory("cuda_plugin", "guard"))
    assert inventory_plugins(tmp_path) == ("cuda_plugin", "guard")


def test_the_tree_is_read(tmp_path: Path) -> None:
    (tmp_path / "pstree.img").write_bytes(_tree(7, 8, 9))
    assert tree_pids(tmp_path) == (7, 8, 9)
    assert taken_pids(tmp_path) == {7, 8, 9}


def test_threads_groups_and_sessions_take_pids_too(tmp_path: Path) -> None:
    root = images_pb2.TreeEntry(pid=7, pgid=3, sid=0, threads=[7, 301, 302])
    child = images_pb2.TreeEntry(pid=8, pgid=8, sid=5, threads=[8])
    (tmp_path / "pstree.img").write_bytes(_tree_of(root, child))
    assert tree_pids(tmp_path) == (7, 8)
    assert taken_pids(tmp_path) == {3, 5, 7, 8, 301, 302}


def test_ordinary_files_are_read(tmp_path: Path) -> None:
    other = images_pb2.FileEntry(id=1)
    grows = images_pb2.FileEntry(id=2)
    grows.reg.flags, grows.reg.pos, grows.reg.name = os.O_WRONLY | os.O_APPEND, 5, b"/log-\xff"
    encoded = [entry.SerializeToString() for entry in (other, grows)]
    framed = b"".join(struct.pack("<I", len(entry)) + entry for entry in encoded)
    (tmp_path / "files.img").write_bytes(COMMON_MAGIC + FILES_MAGIC + framed)
    (file,) = open_files(tmp_path)
    flags = os.O_WRONLY | os.O_APPEND
    assert file == OpenFile(path="/log-\udcff", flags=flags, position=5, size=None)
    assert file.written


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not begin"),
        (b"\x16\x31\x31", "does not begin"),
        (_tree(7), "does not begin"),
        (INVENTORY_MAGIC, "holds 0 entries"),
        (INVENTORY_MAGIC + b"\x01", "cut short"),
        (_inventory("a")[:-1], "cut short"),
        (_inventory("a") + b"\0", "cut short"),
        (_inventory("a") + _inventory("b")[4:], "holds 2 entries"),
        (INVENTORY_MAGIC + struct.pack("<I", 0xFFFFFFFF), "cut short"),
        (INVENTORY_MAGIC + struct.pack("<I", 2) + b"\xff\xff", "cannot be decoded"),
        (INVENTORY_MAGIC + struct.pack("<I", 0), "lacks a part"),
        (INVENTORY_MAGIC + bytes(LARGEST), "longer than"),
    ],
)
def test_damage_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "inventory.img").write_bytes(data)
    with pytest.raises(IntegrityError, match=reason):
        inventory_plugins(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"inventory\.img cannot be read: No such file"):
        inventory_plugins(tmp_path)
    with pytest.raises(IntegrityError, match=r"pstree\.img cannot be read: No such file"):
        tree_pids(tmp_path)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_that_error_alone(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    for name, magic in (("inventory.img", INVENTORY_MAGIC), ("pstree.img", COMMON_MAGIC)):
        (folder / name).write_bytes(magic + data)
    (folder / "files.img").write_bytes(COMMON_MAGIC + FILES_MAGIC + data)
    for read in (inventory_plugins, tree_pids, taken_pids, open_files, abstract_names):
        with suppress(IntegrityError):
            read(folder)
