import hashlib
import itertools
import os
import signal
import threading
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.repository.digest import STEP, FileDigest, digest_file, digest_files
from gpusnap.repository.tree import scan
from tests.repository.samples import silent


def expected(path: str, data: bytes) -> FileDigest:
    sha = hashlib.sha256(data).hexdigest()
    return FileDigest(path=path, size=len(data), crc32=zlib.crc32(data), sha256=sha)


SIZES = [0, 1, STEP - 1, STEP, STEP + 1, 2 * STEP, 3 * STEP + 7]


@pytest.mark.parametrize("size", SIZES)
def test_sums(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    counts: list[int] = []
    assert digest_file(tmp_path / "a", "criu/a", counts.append) == expected("criu/a", data)
    assert sum(counts) == size


@given(data=st.binary(max_size=5000))
def test_sums_of_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    assert digest_file(path, "any", lambda _count: None) == expected("any", data)


def test_many_files_with_progress(tmp_path: Path) -> None:
    contents = {str(number): os.urandom(number * 1000) for number in range(30)}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    seen: list[tuple[int, int]] = []
    found = digest_files(tmp_path, scan(tmp_path), lambda *counts: seen.append(counts))
    assert found == {name: expected(name, data) for name, data in contents.items()}
    total = sum(map(len, contents.values()))
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)


def test_what_cannot_be_read_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    found = digest_files(tmp_path, scan(tmp_path), silent)
    assert isinstance(found["file"], FileDigest)
    assert isinstance(found["link"], OSError)
    assert isinstance(found["pipe"], OSError)


ALL = 1024
"""Steps of all files of ``large``."""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    for name in "abcd":
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, ALL // 4 * STEP)
    return tmp_path


def test_an_interrupt_ends_all_threads_soon(large: Path) -> None:
    steps, arrived = itertools.count(), threading.Event()

    def arrive(_number: int, _frame: object) -> None:
        if not arrived.is_set():
            arrived.set()
            raise KeyboardInterrupt

    def interrupt(_done: int, _total: int) -> None:
        next(steps)
        # A signal that comes just before the main thread begins to wait does not wake it.
        while not arrived.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            arrived.wait(0.05)
        time.sleep(0.002)  # for the main thread to get its turn, on a busy machine too

    before = signal.signal(signal.SIGINT, arrive)
    try:
        with pytest.raises(KeyboardInterrupt):
            digest_files(large, scan(large), interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert next(steps) < ALL


def test_an_error_of_progress_ends_all_threads_soon(large: Path) -> None:
    steps = itertools.count()

    def fail(_done: int, _total: int) -> None:
        if next(steps) == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        digest_files(large, scan(large), fail)
    assert next(steps) == 6
