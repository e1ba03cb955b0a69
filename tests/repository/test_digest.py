import hashlib
import itertools
import os
import signal
import threading
import time
import zlib
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.repository.digest import TOLD_EVERY, FileDigest, digest_file, digest_files
from gpusnap.repository.parts import PART, STEP, PartedFile
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


def expected_in_parts(path: str, data: bytes) -> FileDigest:
    view = memoryview(data)
    sums = [blake3(view[at : at + PART]).digest() for at in range(0, len(data), PART)]
    return FileDigest(
        path=path,
        size=len(data),
        crc32=zlib.crc32(data),
        sha256=None,
        blake3_parts=blake3(b"".join(sums)).hexdigest(),
    )


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(2 * PART + STEP + 7)


@pytest.mark.parametrize("size", [0, 1, STEP + 1, PART - 1, PART, PART + 1, 2 * PART])
def test_sums_in_parts(tmp_path: Path, content: bytes, size: int) -> None:
    path, counts = tmp_path / "a", list[int]()
    path.write_bytes(content[:size])
    found = digest_file(path, "criu/a", counts.append, in_parts=True)
    assert found == expected_in_parts("criu/a", content[:size])
    assert sum(counts) == size


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_large_files_beside_small_ones(tmp_path: Path, content: bytes, workers: int) -> None:
    large = {"all": content, "two": content[: 2 * PART], "more": content[: PART + 1]}
    small = {"one": content[:PART], "none": b""}
    for name, data in (large | small).items():
        (tmp_path / name).write_bytes(data)
    seen: list[tuple[int, int]] = []
    found = digest_files(
        tmp_path, scan(tmp_path), lambda *counts: seen.append(counts), workers=workers
    )
    parted = {name: expected_in_parts(name, data) for name, data in large.items()}
    assert found == parted | {name: expected(name, data) for name, data in small.items()}
    total = sum(map(len, (large | small).values()))
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)


@pytest.mark.parametrize("size", [0, STEP, PART, PART + 5, 2 * PART, 2 * PART + STEP])
@pytest.mark.parametrize("before", [PART + 1, 2 * PART])
def test_a_large_file_that_became_another(
    tmp_path: Path, content: bytes, before: int, size: int
) -> None:
    """What is there when it is read counts, however long it was when it was found."""
    path = tmp_path / "a"
    path.write_bytes(content[:before])
    entries = scan(tmp_path)
    path.write_bytes(content[:size])
    found = digest_files(tmp_path, entries, silent, workers=3)
    assert found == {"a": expected_in_parts("a", content[:size])}


@pytest.mark.parametrize("left", [0, 3 * STEP, PART + STEP])
def test_a_file_that_is_cut_while_threads_read_it(
    tmp_path: Path, content: bytes, left: int
) -> None:
    """One has read what is behind the cut, and another finds the end in front of it."""
    path = tmp_path / "a"
    path.write_bytes(content)
    parted, busy = PartedFile(path), itertools.count()

    def advance(_count: int) -> None:
        if next(busy) == 0:
            parted.read(lambda _count: None)
            os.truncate(path, left)

    parted.read(advance)
    sums = parted.sums()
    # Before the cut were read the first step, and all parts but the first.
    kept = expected_in_parts("a", content if left > PART else content[: max(left, STEP)])
    found = (sums.size, sums.crc32, sums.blake3.hex())
    assert found == (kept.size, kept.crc32, kept.blake3_parts)


def test_a_large_file_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    entries = scan(tmp_path)
    path.rename(tmp_path / "b")
    assert isinstance(digest_files(tmp_path, entries, silent)["a"], FileNotFoundError)
    path.symlink_to("b")
    assert isinstance(digest_files(tmp_path, entries, silent)["a"], OSError)


def test_an_error_of_one_thread_ends_the_others(tmp_path: Path, content: bytes) -> None:
    path, counts = tmp_path / "a", list[int]()
    path.write_bytes(content)
    parted = PartedFile(path)

    def fail(_count: int) -> None:
        raise OSError

    with pytest.raises(OSError):
        parted.read(fail)
    parted.read(counts.append)
    assert counts == []


ALL = 1024
"""Steps of all files of ``large``."""

TOLD = ALL * STEP // TOLD_EVERY
"""How often progress is told of all of them."""


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
        time.sleep(0.05)  # for the main thread to get its turn, on a busy machine too

    before = signal.signal(signal.SIGINT, arrive)
    try:
        with pytest.raises(KeyboardInterrupt):
            digest_files(large, scan(large), interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert next(steps) < TOLD


def test_an_error_of_progress_ends_all_threads_soon(large: Path) -> None:
    steps = itertools.count()

    def fail(_done: int, _total: int) -> None:
        if next(steps) == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        digest_files(large, scan(large), fail)
    assert next(steps) == 6
