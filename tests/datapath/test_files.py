"""What the disk refuses, in the same words wherever it is met."""

import errno
import os
from pathlib import Path

import pytest

from gpusnap.datapath import files
from gpusnap.errors import GpusnapError, NotFoundError, PrivilegeError, UsageError
from gpusnap.repository import storage as of_repository
from tests.descriptors import none_left_open


@pytest.mark.parametrize(
    ("number", "words", "error"),
    [
        (errno.ENOSPC, "the disk is full", GpusnapError),
        (errno.EIO, "the disk failed", GpusnapError),
        (errno.EACCES, "permission denied", PrivilegeError),
        (errno.ENOENT, "it does not exist", NotFoundError),
        (errno.ENOTDIR, "a part of the path is a file", UsageError),
        (errno.ELOOP, "a symbolic link stands where a file is expected", GpusnapError),
        (errno.EXDEV, "it is on another file system", GpusnapError),
        (errno.EBUSY, os.strerror(errno.EBUSY), GpusnapError),
    ],
)
def test_causes(number: int, words: str, error: type[GpusnapError]) -> None:
    for storage in (files.storage, of_repository.storage):
        with pytest.raises(GpusnapError) as caught, storage("write", Path("a\n")):
            raise OSError(number, os.strerror(number))
        assert (type(caught.value), caught.value.text) == (error, f"Cannot write a\\n: {words}")


def test_what_cannot_be_looked_at_is_not_left_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fstat(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "file").touch()
    with none_left_open(), monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fstat)
        with pytest.raises(OSError, match="Input/output error"):
            files.open_regular(tmp_path / "file")


def test_what_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert files.read_whole(tmp_path / "file", 5) == b"12345"
    for name, limit, words in (
        ("file", 4, "longer than 4 bytes"),
        ("link", 5, "a symbolic link stands where a file is expected"),
        ("pipe", 5, "not a regular file"),
    ):
        with pytest.raises(OSError) as caught:
            files.read_whole(tmp_path / name, limit)
        assert files.reason(caught.value) == words
