"""What is there twice, or in a parent, is stored once; and every folder is complete by itself."""

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from gpusnap.datapath import Compression, Filler, Parent, Saved, Saver, Saving, joining
from gpusnap.datapath.identities import Identities, Key
from gpusnap.errors import IntegrityError
from gpusnap.types import SavedMemory
from tests.datapath.memory import MIB, Memory
from tests.datapath.targets import check, save, silent

PLAIN = Saving(compression=Compression.NONE, workers=1)
ONE = Saving(compression=Compression.NONE, workers=1, incremental=True)
THREE = Saving(compression=Compression.ZSTD, workers=3, budget=3 * MIB, incremental=True)


@pytest.fixture
def memory() -> Memory:
    return Memory(os.urandom(20 * MIB))


def take(
    memory: Memory, folder: Path, saving: Saving = ONE, parent: Path | None = None
) -> SavedMemory:
    return save((memory.span,), folder, saving, parent)


def comes_back(folder: Path, memory: Memory, content: bytes) -> bool:
    check(folder)
    memory.lose()
    Filler(folder).fill(silent, verify=True)
    return memory.content == content


def packs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.pack"))


def written(folder: Path) -> int:
    """Bytes of packs that no other folder has."""
    return sum(path.stat().st_size for path in packs(folder) if path.stat().st_nlink == 1)


@pytest.mark.parametrize("saving", [ONE, THREE])
def test_what_is_there_twice_is_stored_once(tmp_path: Path, memory: Memory, saving: Saving) -> None:
    twin = Memory(memory.content)
    summary = save((memory.span, twin.span), tmp_path / "a", saving)
    assert summary.duplicates == 20 * MIB
    assert sum(use.raw for use in summary.codecs) == 20 * MIB
    assert summary.identities
    content = memory.content
    twin.lose()
    assert comes_back(tmp_path / "a", memory, content)
    assert twin.content == content
    assert Filler(tmp_path / "a").raw_bytes == 40 * MIB


def test_a_plain_saving_pays_for_no_identity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory: Memory
) -> None:
    monkeypatch.setattr("gpusnap.datapath.store.identify", None)
    summary = take(memory, tmp_path / "a", PLAIN)
    assert not summary.identities
    assert Parent(Saved(tmp_path / "a")).known == {}


def test_identity_length_and_checksum_must_match() -> None:
    identities = Identities({})
    first, new = identities.claim(Key(b"i" * 32, 4096, 1))
    assert new
    assert identities.claim(Key(b"i" * 32, 4096, 1)) == (first, False)
    for other in (Key(b"j" * 32, 4096, 1), Key(b"i" * 32, 8192, 1), Key(b"i" * 32, 4096, 2)):
        assert identities.claim(other)[1]


@pytest.mark.parametrize("saving", [ONE, THREE])
def test_only_what_changed_is_stored(tmp_path: Path, memory: Memory, saving: Saving) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    take(memory, a, saving)
    while min(map(len, Saved(a).tables)) < 5:  # of a pack with little of use nothing is linked
        shutil.rmtree(a)
        take(memory, a, saving)
    memory.change(3 * MIB + 5, bytes([memory.content[3 * MIB + 5] ^ 1]))
    memory.change(9 * MIB, os.urandom(MIB))
    content = memory.content
    summary = take(memory, b, saving, a)
    assert summary.reused == 18 * MIB
    assert summary.stored == 2 * MIB
    assert summary.linked == sum(path.stat().st_size for path in packs(a))
    assert written(b) < 2 * MIB + 64 * 1024
    shutil.rmtree(a)
    assert comes_back(b, memory, content)


def test_nothing_changed(tmp_path: Path, memory: Memory) -> None:
    take(memory, tmp_path / "a")
    summary = take(memory, tmp_path / "b", parent=tmp_path / "a")
    assert (summary.stored, summary.reused, summary.codecs) == (0, 20 * MIB, ())
    assert written(tmp_path / "b") == 0
    assert comes_back(tmp_path / "b", memory, memory.content)


def test_content_is_found_wherever_it_is(tmp_path: Path, memory: Memory) -> None:
    take(memory, tmp_path / "a")
    moved = Memory(memory.content[4 * MIB :] + memory.content[: 4 * MIB])
    content = moved.content
    assert take(moved, tmp_path / "b", parent=tmp_path / "a").stored == 0
    assert comes_back(tmp_path / "b", moved, content)


def test_a_parent_of_which_little_is_used_is_copied_from(tmp_path: Path, memory: Memory) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    take(memory, a)
    memory.change(0, os.urandom(11 * MIB))
    content = memory.content
    summary = take(memory, b, parent=a)
    assert (summary.reused, summary.linked) == (9 * MIB, 0)
    assert summary.stored == 20 * MIB
    assert [path.stat().st_nlink for path in packs(b)] == [1, 1]
    assert comes_back(b, memory, content)


def test_progress_counts_what_is_copied(tmp_path: Path, memory: Memory) -> None:
    take(memory, tmp_path / "a")
    memory.change(0, os.urandom(15 * MIB))
    saver = Saver(tmp_path / "b", ONE, Parent(Saved(tmp_path / "a")))
    saver.copy((memory.span,), silent)
    seen: list[tuple[int, int]] = []
    saver.finish(lambda done, total: seen.append((done, total)))
    assert seen[-5:] == [((20 + number) * MIB, 25 * MIB) for number in range(1, 6)]


def test_packs_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory: Memory
) -> None:
    monkeypatch.setattr(joining, "MOST_LINKED", 2)
    random.seed(7)
    for number in range(6):
        memory.change(random.randrange(20) * MIB, os.urandom(MIB))
        parent = tmp_path / str(number - 1) if number else None
        take(memory, tmp_path / str(number), parent=parent)
    assert len(packs(tmp_path / "5")) <= 4
    contents = memory.content
    for number in range(5):
        shutil.rmtree(tmp_path / str(number))
    assert comes_back(tmp_path / "5", memory, contents)


def test_each_generation_comes_back(tmp_path: Path) -> None:
    random.seed(11)
    memory = Memory(random.randbytes(6 * MIB))
    contents = []
    for number in range(8):
        for _ in range(3):
            memory.change(random.randrange(5 * MIB), random.randbytes(random.choice([1, 300_000])))
        memory.change(random.randrange(1400) * 4096, bytes(4096))
        contents.append(memory.content)
        parent = tmp_path / str(number - 1) if number else None
        take(memory, tmp_path / str(number), THREE, parent)
    for number in (0, 3, 7, 5, 1, 6, 2, 4):
        assert comes_back(tmp_path / str(number), memory, contents[number])
        shutil.rmtree(tmp_path / str(number))


def test_where_no_link_can_be_made_chunks_are_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory: Memory
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMLINK, "Too many links")

    take(memory, tmp_path / "a")
    monkeypatch.setattr(os, "link", refuse)
    summary = take(memory, tmp_path / "b", parent=tmp_path / "a")
    assert (summary.reused, summary.linked, summary.stored) == (20 * MIB, 0, 20 * MIB)
    assert comes_back(tmp_path / "b", memory, memory.content)


def test_a_damaged_chunk_of_the_parent_is_not_copied(tmp_path: Path, memory: Memory) -> None:
    a = tmp_path / "a"
    take(memory, a)
    position = Saved(a).tables[0][15].position
    data = bytearray(packs(a)[0].read_bytes())
    data[position + 99] ^= 1
    packs(a)[0].write_bytes(data)
    memory.change(0, os.urandom(11 * MIB))
    with pytest.raises(IntegrityError, match=rf"a/000\.pack, of the parent, .* at {position}"):
        take(memory, tmp_path / "b", parent=a)
    assert not (tmp_path / "b/index").exists()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def checked(memory: Memory, folder: Path, parent: Path, seen: list[int]) -> SavedMemory:
    saver = Saver(folder, ONE, Parent(Saved(parent)))
    saver.copy((memory.span,), silent)
    return saver.finish(lambda done, _total: seen.append(done), check_parent=True)


def test_an_intact_parent_is_linked_after_a_check(tmp_path: Path, memory: Memory) -> None:
    take(memory, tmp_path / "a")
    memory.change(0, os.urandom(MIB))
    seen: list[int] = []
    summary = checked(memory, tmp_path / "b", tmp_path / "a", seen)
    assert summary.linked == packs(tmp_path / "a")[0].stat().st_size
    assert seen == sorted(seen)
    assert seen[-1] == 20 * MIB + summary.linked


def test_a_damaged_chunk_of_the_parent_is_not_linked(tmp_path: Path, memory: Memory) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    take(memory, a)
    position = Saved(a).tables[0][15].position
    flip(packs(a)[0], position + 99)
    memory.change(0, os.urandom(MIB))
    with pytest.raises(IntegrityError, match=rf"a/000\.pack, of .* at {position}") as caught:
        checked(memory, b, a, [])
    assert caught.value.cure == joining._CURE
    assert not (b / "index").exists()


@pytest.mark.parametrize("place", ["header", "unused chunk", "footer"])
def test_of_a_damaged_pack_what_is_intact_is_copied(
    tmp_path: Path, memory: Memory, place: str
) -> None:
    """A restore refuses a snapshot with any damage, wherever it is."""
    a, b = tmp_path / "a", tmp_path / "b"
    take(memory, a)
    flip(packs(a)[0], {"header": 40, "unused chunk": 5000, "footer": -60}[place])
    memory.change(0, os.urandom(MIB))
    content = memory.content
    summary = checked(memory, b, a, [])
    assert (summary.linked, summary.stored) == (0, 20 * MIB)
    assert comes_back(b, memory, content)


def test_a_part_of_the_parent_that_cannot_be_read(tmp_path: Path, memory: Memory) -> None:
    a = tmp_path / "a"
    take(memory, a)
    memory.change(0, os.urandom(11 * MIB))
    saver = Saver(tmp_path / "b", ONE, Parent(Saved(a)))
    saver.copy((memory.span,), silent)
    packs(a)[0].unlink()
    with pytest.raises(IntegrityError, match="cannot be read") as caught:
        saver.finish(silent)
    assert caught.value.cure == joining._CURE


def test_damage_is_told_where_no_memory_of_this_snapshot_is(tmp_path: Path, memory: Memory) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    take(memory, a)
    memory.change(0, os.urandom(MIB))
    take(memory, b, parent=a)
    linked = next(path for path in packs(b) if path.stat().st_nlink > 1)
    data = bytearray(linked.read_bytes())
    data[5000] ^= 1
    linked.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"in the chunk at 4096 \(of an earlier snapshot\)"):
        check(b)
    with pytest.raises(IntegrityError, match=r"in the chunk at 4096 \(process \d+, 0x[0-9a-f]+\)"):
        check(a)
    Filler(b).fill(silent)  # which has no need of it


def test_a_saving_that_is_given_up_leaves_the_parent_alone(tmp_path: Path, memory: Memory) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    content = memory.content
    take(memory, a)
    saver = Saver(b, ONE, Parent(Saved(a)))
    saver.copy((memory.span,), silent)
    saver.abort()
    shutil.rmtree(b)
    assert comes_back(a, memory, content)
    take(memory, b, parent=a)
    shutil.rmtree(b)
    assert comes_back(a, memory, content)
