"""CRIU's inventory and process list, whole and damaged."""

import os
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.criu import OpenFile, abstract_names, images_pb2, inventory_plugins, open_files
from gpusnap.criu.images import (
    COMMON_MAGIC,
    FILES_MAGIC,
    INVENTORY_MAGIC,
    LARGEST,
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
