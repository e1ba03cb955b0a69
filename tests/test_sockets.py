"""Folders of sockets: made where they are missing, and taken away after a failure."""

import socket
import struct
from pathlib import Path

import pytest

from gpusnap.criu import images_pb2, socket_files
from gpusnap.criu.images import COMMON_MAGIC, FILES_MAGIC
from gpusnap.errors import GpusnapError
from gpusnap.sockets import socket_folders

LISTENING, ESTABLISHED = 10, 1


def entry(
    name: bytes, state: int = LISTENING, kind: int = socket.SOCK_STREAM, **more: object
) -> images_pb2.FileEntry:
    found = images_pb2.UnixSocket(type=kind, state=state, name=name, **more)  # type: ignore[arg-type]
    return images_pb2.FileEntry(id=1, usk=found)


def write(images: Path, *entries: images_pb2.FileEntry) -> None:
    encoded = [each.SerializeToString() for each in entries]
    framed = b"".join(struct.pack("<I", len(each)) + each for each in encoded)
    (images / "files.img").write_bytes(COMMON_MAGIC + FILES_MAGIC + framed)


def test_which_sockets_get_a_file(tmp_path: Path) -> None:
    owner = images_pb2.FilePermissions(mode=0o755, uid=7, gid=8)
    write(
        tmp_path,
        images_pb2.FileEntry(id=1, reg=images_pb2.RegularFile(flags=0, pos=0, name=b"/a")),
        entry(b"/run/one\0", file_perms=owner),
        entry(b"/run/two", ESTABLISHED, socket.SOCK_DGRAM),
        entry(b"/run/accepted", ESTABLISHED),
        entry(b"\0abstract"),
        entry(b""),
        entry(b"/run/deleted", deleted=True),
        entry(b"relative", name_dir="/run"),
    )
    found = [(each.path, each.user, each.group) for each in socket_files(tmp_path)]
    assert found == [("/run/one", 7, 8), ("/run/two", 0, 0)]


def test_missing_folders_are_made(root: None, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    owner = images_pb2.FilePermissions(mode=0o755, uid=7, gid=8)
    names = [there / "a/b/one", there / "a/two", there / "three"]
    write(tmp_path, *(entry(bytes(name), file_perms=owner) for name in names))
    with socket_folders(tmp_path):
        pass
    for folder in (there / "a", there / "a/b"):
        status = folder.stat()
        assert (status.st_mode & 0o777, status.st_uid, status.st_gid) == (0o700, 7, 8)
    assert there.stat().st_uid == 0


def fail_with(images: Path, folder: Path) -> None:
    with socket_folders(images):
        assert folder.is_dir()
        raise KeyError


def test_after_a_failure_none_is_left(tmp_path: Path) -> None:
    write(tmp_path, entry(bytes(tmp_path / "a/b/one")))
    with pytest.raises(KeyError):
        fail_with(tmp_path, tmp_path / "a/b")
    assert not (tmp_path / "a").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    write(tmp_path, entry(bytes(tmp_path / "a/one")), entry(bytes(tmp_path / "file/b/one")))
    with pytest.raises(GpusnapError, match="file/b of a socket"), socket_folders(tmp_path):
        pass
    assert not (tmp_path / "a").exists()
