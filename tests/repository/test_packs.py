"""Snapshots with memory in packs: digested as written, verified by chunk, shared by links."""

import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from gpusnap.datapath import Compression, Parent, Saving, Subset
from gpusnap.errors import GpusnapError, IntegrityError, UsageError
from gpusnap.hookspecs import Progress
from gpusnap.native import crc32
from gpusnap.repository import (
    Repository,
    draft,
    newest_parent,
    open_parent,
    require_intact,
    verify,
)
from gpusnap.repository.digest import FileDigest, digest_file, digest_files
from gpusnap.repository.tree import Entry
from gpusnap.types import Target
from tests.datapath.memory import MIB, Memory
from tests.repository.samples import TARGET, alter, silent, take_memory


@pytest.fixture
def memory() -> Memory:
    return Memory(os.urandom(6 * MIB))


def flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def test_packs_are_not_read_again(
    monkeypatch: pytest.MonkeyPatch, repository: Repository, memory: Memory
) -> None:
    read: list[str] = []

    def note(
        root: Path, entries: list[Entry], progress: Progress
    ) -> dict[str, FileDigest | OSError]:
        read.extend(entry.path for entry in entries)
        return digest_files(root, entries, progress)

    monkeypatch.setattr(draft, "digest_files", note)
    snapshot = take_memory(repository, "a", memory)
    assert read == ["criu/core-7.img", "regions/index"]
    files = {file.path: file for file in snapshot.manifest.files}
    assert {path for path, file in files.items() if file.sha256 is None} == {"regions/000.pack"}
    for path, file in files.items():
        again = digest_file(snapshot.path / path, path, lambda _count: None)
        assert (again.size, again.crc32) == (file.size, file.crc32)


def test_intact(repository: Repository, memory: Memory) -> None:
    snapshot = take_memory(repository, "a", memory)
    seen: list[tuple[int, int]] = []
    found = verify(snapshot, lambda *counts: seen.append(counts), workers=3)
    assert (found.files, found.bytes, found.total) == (3, snapshot.size, snapshot.size)
    assert found.findings == ()
    assert seen[-1] == (snapshot.size, snapshot.size)


def test_a_damaged_chunk_is_named(repository: Repository, memory: Memory) -> None:
    snapshot = take_memory(repository, "a", memory)
    flip(snapshot.regions / "000.pack", 4096 + MIB + 77)
    flip(snapshot.regions / "000.pack", 4096 + 3 * MIB + 77)
    found = verify(snapshot, silent)
    start = memory.span.start
    assert [finding.text for finding in found.findings] == [
        f"File regions/000.pack is damaged in the chunk at {4096 + number * MIB} "
        f"(process {os.getpid()}, {start + number * MIB:#x}): it does not match its checksum"
        for number in (1, 3)
    ]
    assert {finding.code for finding in found.findings} == {"snapshot-chunk-damaged"}
    with pytest.raises(IntegrityError, match=r"regions/000\.pack is damaged in the chunk"):
        require_intact(snapshot, silent)


def test_a_thousand_flipped_bits(repository: Repository) -> None:
    """Wherever a bit flips, what a restore calls first names the file."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    random.seed(seed)
    text = b"".join(b"step %06d loss %06d\n" % (n, n * n % 9973) for n in range(10_000))
    memory = Memory(text[: 200 << 10] + random.randbytes(100 << 10) + bytes(48 << 10))
    saving = Saving(compression=Compression.ZSTD, workers=1, incremental=True)
    snapshot = take_memory(repository, "a", memory, saving=saving)
    files = [path for path in snapshot.path.rglob("*") if path.is_file()]
    for _ in range(1000):
        path = random.choice(files)
        at, bit = random.randrange(path.stat().st_size), random.randrange(8)
        flip(path, at, bit)
        with pytest.raises(IntegrityError) as found:
            require_intact(snapshot, silent)
        named = "manifest.json" if path.name.startswith("manifest") else path.name
        assert named in found.value.text, (path, at, bit)
        flip(path, at, bit)
    require_intact(snapshot, silent)


def test_more_damage_than_is_told(
    monkeypatch: pytest.MonkeyPatch, repository: Repository, memory: Memory
) -> None:
    monkeypatch.setattr("gpusnap.datapath.checker.MOST", 2)
    snapshot = take_memory(repository, "a", memory)
    for number in range(5):
        flip(snapshot.regions / "000.pack", 4096 + number * MIB)
    texts = [finding.text for finding in verify(snapshot, silent).findings]
    assert len(texts) == 3
    assert texts[-1] == "3 more chunks of packs are damaged"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (Path.unlink, "snapshot-file-missing", "is missing"),
        (lambda path: os.truncate(path, 5000), "snapshot-file-truncated", "has 5000 bytes instead"),
        (lambda path: flip(path, 50), "snapshot-file-altered", "its header is not that"),
        (lambda path: flip(path, path.stat().st_size - 60), "snapshot-file-altered", "its footer"),
        (
            lambda path: path.write_bytes(path.read_bytes() + b"x"),
            "snapshot-file-altered",
            "bytes instead of",
        ),
    ],
)
def test_a_damaged_pack(
    repository: Repository, memory: Memory, change: object, code: str, words: str
) -> None:
    snapshot = take_memory(repository, "a", memory)
    assert callable(change)
    change(snapshot.regions / "000.pack")
    (finding,) = verify(snapshot, silent).findings
    assert finding.code == code
    assert finding.text.startswith("File regions/000.pack ")
    assert words in finding.text


def test_a_damaged_index_is_the_one_finding(repository: Repository, memory: Memory) -> None:
    snapshot = take_memory(repository, "a", memory)
    flip(snapshot.regions / "index", 200)
    (finding,) = verify(snapshot, silent).findings
    assert finding.text == "File regions/index has another SHA-256"


def test_a_manifest_that_names_another_pack(repository: Repository, memory: Memory) -> None:
    """A manifest must not have a file passed over that no index knows."""
    snapshot = take_memory(repository, "a", memory)
    files = msgspec.to_builtins(snapshot.manifest.files)
    for file in files:
        if file["path"] == "criu/core-7.img":
            file["sha256"] = None
    alter(snapshot, files=files)
    (finding,) = verify(snapshot, silent).findings
    assert finding.text == "File criu/core-7.img is in the manifest another file than in the index"


def test_an_index_that_is_no_index(repository: Repository, memory: Memory) -> None:
    snapshot = take_memory(repository, "a", memory)
    index = snapshot.regions / "index"
    index.write_bytes(b"nonsense")
    files = msgspec.to_builtins(snapshot.manifest.files)
    for file in files:
        if file["path"] == "regions/index":
            file.update(msgspec.to_builtins(digest_file(index, "regions/index", lambda _n: None)))
    alter(snapshot, files=files)
    (finding,) = verify(snapshot, silent).findings
    assert "index is damaged: it does not begin as an index" in finding.text


def test_a_part_of_the_data(repository: Repository, memory: Memory) -> None:
    snapshot = take_memory(repository, "a", memory)
    flip(snapshot.regions / "000.pack", 4096 + MIB)
    first, second = (verify(snapshot, silent, subset=Subset(part=n, of=2)) for n in (1, 2))
    assert first.intact
    assert not second.intact
    assert first.total == snapshot.size
    assert first.bytes + second.bytes > snapshot.size
    assert first.bytes < 0.6 * snapshot.size


def test_removal_frees_what_nobody_else_has(repository: Repository, memory: Memory) -> None:
    first = take_memory(repository, "a", memory)
    memory.change(0, b"other")
    second = take_memory(repository, "b", memory, first)
    assert second.manifest.parent == first.manifest.id
    assert second.stored_size < MIB + 100_000
    assert second.size > 6 * MIB
    assert repository.remove(first) < MIB
    assert verify(second, silent).intact
    assert repository.remove(second) > 6 * MIB


def test_a_copied_folder_is_complete(
    repository: Repository, memory: Memory, tmp_path: Path
) -> None:
    first = take_memory(repository, "a", memory)
    second = take_memory(repository, "b", memory, first)
    shutil.copytree(second.path, tmp_path / "copy")
    repository.remove(second)
    repository.remove(first)
    assert verify(tmp_path / "copy", silent).intact


def test_the_newest_of_the_same_program(repository: Repository, memory: Memory) -> None:
    assert newest_parent(repository.path / "absent", TARGET) is None
    assert newest_parent(repository.path, TARGET) is None
    first = take_memory(repository, "a", memory)
    second = take_memory(repository, "b", memory)
    take_memory(repository, "c", memory, saving=Saving(workers=1))
    assert newest_parent(repository.path, TARGET) == second
    root = msgspec.structs.replace(TARGET.root, command=("train", "--epochs=4"))
    assert newest_parent(repository.path, Target(processes=(root,))) is None
    repository.remove(second)
    assert newest_parent(repository.path, TARGET) == first


def test_a_plain_snapshot_is_no_parent(repository: Repository, memory: Memory) -> None:
    plain = take_memory(repository, "a", memory, saving=Saving(workers=1))
    with pytest.raises(UsageError, match="not made with --incremental"):
        open_parent(plain)


@pytest.mark.parametrize("name", ["index", "000.pack"])
def test_a_damaged_snapshot_is_no_parent(repository: Repository, memory: Memory, name: str) -> None:
    snapshot = take_memory(repository, "a", memory)
    os.truncate(snapshot.regions / name, 1000)
    with pytest.raises(IntegrityError, match="Snapshot a cannot be a parent"):
        open_parent(snapshot)
    (snapshot.regions / name).unlink()
    with pytest.raises(IntegrityError, match="Snapshot a cannot be a parent"):
        open_parent(snapshot)


def test_an_index_with_a_sum_of_its_own_is_no_parents(
    repository: Repository, memory: Memory
) -> None:
    """It is compared with the manifest, not only with itself."""
    snapshot = take_memory(repository, "a", memory)
    index = snapshot.regions / "index"
    data = bytearray(index.read_bytes()[:-4])
    data[40] ^= 1
    index.write_bytes(bytes(data) + crc32(data).to_bytes(4, "little"))
    with pytest.raises(IntegrityError, match="index is damaged"):
        open_parent(snapshot)


def test_another_file_system(
    repository: Repository, memory: Memory, mounted: object, tmp_path: Path
) -> None:
    assert callable(mounted)
    other = Repository.create(mounted("size=20m") / "repo")
    snapshot = take_memory(other, "a", memory)
    with repository.prepare("b") as draft:
        with pytest.raises(UsageError, match="cannot be linked: it is on another file system"):
            open_parent(snapshot, draft)
        assert os.listdir(draft.work) == []
    assert isinstance(open_parent(snapshot), Parent)


def test_a_parent_in_use_is_not_removed(repository: Repository, memory: Memory) -> None:
    snapshot = take_memory(repository, "a", memory)
    with snapshot.hold(), pytest.raises(GpusnapError, match="is in use"):
        repository.remove(snapshot)


def test_a_digest_may_lack_its_sha256() -> None:
    plain = {"path": "regions/000.pack", "size": 1, "crc32": 1, "sha256": None}
    assert msgspec.convert(plain, FileDigest).sha256 is None
