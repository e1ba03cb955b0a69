"""However many packs there are, few are open; and too many open files are no damage."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpusnap.datapath import Compression, Filler, Saved, Saving, check_packs, compare_memory
from gpusnap.datapath.reading import use_chunks
from gpusnap.datapath.saved import Located
from gpusnap.errors import GpusnapError, IntegrityError
from gpusnap.repository import Repository, open_parent, open_snapshot, verify
from tests.datapath.memory import MIB, Memory
from tests.datapath.targets import save, silent
from tests.descriptors import descriptors
from tests.repository.samples import take_memory

SAVING = Saving(compression=Compression.NONE, workers=1, incremental=True)
PACKS = 5


def packs_open() -> int:
    """How many packs are open; what else this process opens meanwhile is no matter."""
    return sum(path.endswith(".pack") for _number, path in descriptors())


@pytest.fixture
def memory() -> Memory:
    return Memory(os.urandom(MIB))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Memory in many packs, one for each generation."""
    top, content = tmp_path_factory.mktemp("packs"), b""
    for number in range(PACKS):
        content += os.urandom(MIB)
        memory = Memory(content)
        parent = top / str(number - 1) if number else None
        save((memory.span,), top / str(number), SAVING, parent)
    assert len(list((top / str(PACKS - 1)).glob("*.pack"))) == PACKS
    return top / str(PACKS - 1)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let nothing more be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def one(_located: Located) -> int:
    return 1


@pytest.mark.parametrize("workers", [1, 3])
def test_a_thread_has_one_pack_open(folder: Path, workers: int) -> None:
    saved, seen, before = Saved(folder), list[int](), packs_open()

    def use(_located: Located, _extent: memoryview) -> None:
        seen.append(packs_open() - before)

    located = saved.located()
    use_chunks(saved, located, use, worth=one, workers=workers, progress=silent)
    assert len(seen) == len(located) >= PACKS
    assert 1 <= max(seen) <= workers
    assert packs_open() == before


def test_a_comparison_has_two_packs_open(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    before, seen = packs_open(), list[int]()

    def look(_a: bytes, _b: bytes) -> int:
        seen.append(packs_open() - before)
        return 0

    monkeypatch.setattr("gpusnap.datapath.pairs._known_same", lambda _a, _b: False)
    monkeypatch.setattr("gpusnap.datapath.pairs._changed_pages", look)
    compare_memory(folder, folder, workers=1, progress=silent)
    assert len(seen) >= PACKS
    assert max(seen) == 2
    assert packs_open() == before


def test_too_many_open_files_are_no_damage(folder: Path) -> None:
    saved = Saved(folder)
    numbers = range(PACKS)
    reads = (
        lambda: Saved(folder),
        saved.require_packs,
        lambda: check_packs(saved, numbers, workers=1, progress=silent),
        lambda: use_chunks(
            saved, saved.located(), lambda *_: None, worth=one, workers=1, progress=silent
        ),
        lambda: compare_memory(folder, folder, workers=1, progress=silent),
        lambda: Filler(folder),
    )
    for read in reads:
        with no_descriptors(), pytest.raises(GpusnapError, match="too many files open") as caught:
            read()
        assert not isinstance(caught.value, IntegrityError)
        assert caught.value.cure == "Raise the limit: ulimit -n"


def test_nor_are_they_in_a_repository(tmp_path: Path, memory: Memory) -> None:
    snapshot = take_memory(Repository.create(tmp_path / "repo"), "a", memory)
    for read in (
        lambda: open_snapshot(snapshot.path),
        lambda: verify(snapshot, silent),
        lambda: open_parent(snapshot),
    ):
        with no_descriptors(), pytest.raises(GpusnapError, match="too many files open") as caught:
            read()
        assert not isinstance(caught.value, IntegrityError)


def test_what_a_use_is_refused_is_not_the_packs_fault(folder: Path) -> None:
    def use(_located: Located, _extent: memoryview) -> None:
        raise OSError(errno.EIO, "another file")

    saved = Saved(folder)
    with pytest.raises(OSError, match="another file"):
        use_chunks(saved, saved.located(), use, worth=one, workers=2, progress=silent)
