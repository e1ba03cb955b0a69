"""diff on snapshots that need no CRIU to make."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpusnap.errors import IntegrityError
from gpusnap.repository import Repository, Snapshot
from gpusnap.repository.parts import PART
from tests.cli.conftest import Command
from tests.datapath.memories import MIB, Memory
from tests.repository.samples import alter, fill, in_version_1, manifest, silent, take

BASE = 0x7F00_0000_0000
PAGE = 4096
DATA = bytes(range(1, 255)) * PAGE


class Maker:
    """Makes snapshots with memory of process 7."""

    def __init__(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        self._repository = repository
        self._memory = Memory(monkeypatch, folder)
        self.folder = folder

    def make(self, name: str, memory: dict[int, bytes], image: bytes = b"image") -> Snapshot:
        folder = self._memory.save(f"memory-{name}", {7: memory})
        files = {f"regions/{each.name}": each.read_bytes() for each in folder.iterdir()}
        with self._repository.prepare(name) as draft:
            fill(draft, files | {"criu/core-7.img": image})
            return draft.publish(manifest(name, draft.digest(silent)))


@pytest.fixture
def maker(repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Maker:
    return Maker(repository, monkeypatch, tmp_path)


def facts(out: str) -> list[str]:
    return [" ".join(line.split()) for line in out.splitlines()]


def test_the_same_however_a_large_file_was_summed(
    command: Command, repository: Repository, maker: Maker
) -> None:
    image = bytes(PART + 1)
    in_version_1(maker.make("a", {BASE: DATA}, image))
    maker.make("b", {BASE: DATA}, image)
    maker.make("c", {BASE: DATA}, image[:-1] + b"x")
    for other, same in (("b", True), ("c", False)):
        answer = command("diff", "a", other, "--repo", repository.path)
        assert ("images the same" in facts(answer.out)) == same


def test_the_same(command: Command, repository: Repository, maker: Maker) -> None:
    a, b = (maker.make(name, {BASE: DATA[: MIB // 2]}) for name in "ab")
    answer = command("diff", "a", "b", "--repo", repository.path)
    assert (answer.code, answer.err) == (0, "")
    assert facts(answer.out) == [
        f"A {a.path}",
        f"B {b.path}",
        "memory 524 kB equal, 0 B changed",
        "0 B only in A, 0 B only in B",
        "processes the same",
        "facts the same",
        "images the same",
    ]


def test_what_changed(command: Command, repository: Repository, maker: Maker) -> None:
    data = DATA[: MIB // 2]
    changed = data[:PAGE] + bytes(PAGE) + data[2 * PAGE :]
    maker.make("a", {BASE: data, BASE + MIB: data})
    b = maker.make("b", {BASE: data, BASE + MIB: changed + data[:PAGE]}, b"another")
    process = msgspec.to_builtins(b.manifest.target.processes[0])
    child = process | {"id": {"pid": 9, "start_ticks": 4}, "command": ["loader"]}
    device: dict[str, Any] = {"index": 0, "uuid": "GPU-1", "vendor": "v", "model": "H200"}
    alter(
        b,
        target={"processes": [process | {"command": ["train", "-x"]}, child]},
        options={"file_locks": True},
        driver_version="590.1",
        devices=[device],
    )
    answer = command("diff", "a", "b", "--repo", repository.path)
    assert (answer.code, answer.err) == (0, "")
    assert facts(answer.out)[2:] == [
        "memory 1.04 MB equal, 4.1 kB changed",
        "0 B only in A, 4.1 kB only in B",
        "processes 2 differ",
        "7 train --epochs=3 became train -x",
        "9 loader is only in B",
        "facts 3 differ",
        "driver_version: - to 590.1",
        "options.file_locks: no to yes",
        "devices[0]: - to H200, GPU-1",
        "images 1 differs",
        "criu/core-7.img: 5 B to 7 B",
        "PID ADDRESS KIND LENGTH EQUAL CHANGED ONLY A ONLY B",
        f"7 {BASE + MIB:#x} host 528 kB 520 kB 4.1 kB 0 B 4.1 kB",
    ]
    back = command("diff", "b", "a", "--repo", repository.path)
    assert "9 loader is only in A" in facts(back.out)


def test_json(command: Command, repository: Repository, maker: Maker) -> None:
    data = DATA[: MIB // 2]
    a = maker.make("a", {BASE: data})
    b = maker.make("b", {BASE: data[:PAGE] + data[: -PAGE - 1] + b"!"}, b"another")
    answer = command("diff", a.path, "latest", "--repo", repository.path, "--json")
    assert (answer.code, answer.err) == (0, "")
    summary = answer.lines[-1]
    assert (summary["message_type"], summary["verb"]) == ("summary", "diff")
    found = summary["result"]
    assert list(found) == ["a", "b", "total", "memory", "processes", "fields", "images"]
    assert (found["a"], found["b"]) == (str(a.path), str(b.path))
    [row] = found["memory"]
    assert row["equal"] + row["changed"] == row["length"] == MIB // 2
    assert row["pid"] == 7
    assert found["total"] == {key: row[key] for key in ("equal", "changed", "only_a", "only_b")}
    assert found["images"] == [{"path": "criu/core-7.img", "a": 5, "b": 7}]


def test_memory_that_criu_saved_is_no_range(command: Command, repository: Repository) -> None:
    for name in ("a", "b"):
        take(repository, name)
    found = command("diff", "a", "b", "--repo", repository.path, "--json").lines[-1]["result"]
    assert (found["memory"], found["total"]["equal"]) == ([], 0)


def test_only_the_first_rows_are_shown(
    command: Command, repository: Repository, maker: Maker
) -> None:
    pages = {BASE + number * MIB: DATA[:PAGE] for number in range(23)}
    maker.make("a", pages)
    maker.make("b", {})
    answer = command("diff", "a", "b", "--repo", repository.path)
    assert facts(answer.out)[-1] == "and 3 more ranges with changes"


def test_damage(command: Command, repository: Repository, maker: Maker) -> None:
    maker.make("a", {BASE: DATA[: MIB // 2]})
    b = maker.make("b", {BASE: DATA[1 : MIB // 2 + 1]})
    pack = b.regions / "000.pack"
    data = bytearray(pack.read_bytes())
    data[4096] ^= 1
    pack.write_bytes(data)
    answer = command("diff", "a", "b", "--repo", repository.path)
    assert answer.code == IntegrityError.exit_code
    assert answer.err.startswith(f"gpusnap: {pack} is damaged in the chunk at 4096 (process 7, ")
    (b.regions / "index").write_bytes(b"")
    answer = command("diff", "a", "b", "--repo", repository.path)
    assert answer.code == IntegrityError.exit_code
    assert answer.err.startswith(f"gpusnap: {b.regions / 'index'} is damaged: ")


def test_who_is_not_there(command: Command, repository: Repository) -> None:
    take(repository, "a")
    answer = command("diff", "a", "b", "--repo", repository.path)
    answer.refused(10, f"There is no snapshot 'b' in {repository.path}")
