"""Snapshots that share what did not change, each complete by itself, whatever becomes of others."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusnap.errors import IntegrityError
from gpusnap.repository import open_snapshot, require_intact
from gpusnap.target import identity
from tests.e2e.jobs import Site, await_true, start_detached
from tests.pids import kill

MIB = 1 << 20
SIZE = 32 * MIB

PROGRAM = """
import hashlib, mmap, os, random, signal, sys, time
MIB = 1 << 20
random.seed(5)
out, size, touched = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
piece = random.randbytes(9 * MIB) if touched == size else random.randbytes(MIB // 2) * 2
for at in range(0, touched, MIB):
    shift = at // MIB * 4093 % (8 * MIB) if touched == size else 0
    memory[at : at + MIB] = piece[shift : shift + MIB]
del piece

def tell():
    with open(out + ".new", "w") as file:
        file.write(hashlib.sha256(memory).hexdigest())
    os.rename(out + ".new", out)

def change(*_):
    at = random.randrange(size * 19 // 20)
    memory[at : at + size // 20] = random.randbytes(size // 20)
    tell()

signal.signal(signal.SIGUSR1, change)
signal.signal(signal.SIGUSR2, lambda *_: tell())
tell()
while True:
    time.sleep(0.05)
"""


class Program:
    """A program that changes a twentieth of its memory when it is told to."""

    def __init__(self, site: Site, size: int = SIZE, touched: int | None = None) -> None:
        program = site.folder / "changing.py"
        program.write_text(PROGRAM)
        self.out = site.folder / "digest"
        pid_file = site.folder / "changing.pid"
        command = [sys.executable, "-SE", str(program), str(self.out), str(size)]
        command.append(str(touched or size))
        start_detached(command, pid_file, site.environment)
        self.pid = int(pid_file.read_text())
        await_true(self.out.exists, "the memory is filled")

    def _tell(self, number: signal.Signals) -> str:
        self.out.unlink()
        os.kill(self.pid, number)
        await_true(self.out.exists, "the program tells its digest")
        return self.out.read_text()

    def change(self) -> str:
        return self._tell(signal.SIGUSR1)

    def digest(self) -> str:
        return self._tell(signal.SIGUSR2)

    def kill(self) -> None:
        if identity(self.pid) is not None:
            kill(self.pid)
        await_true(lambda: identity(self.pid) is None, "the PID is free")


@pytest.fixture
def program(site: Site) -> Iterator[Program]:
    program = Program(site)
    yield program
    program.kill()


def take(site: Site, program: Program, name: str, *options: object) -> dict[str, Any]:
    """Make an incremental snapshot; its row of the listing."""
    ran = site.gpusnap("checkpoint", program.pid, name, "--incremental", "--json", *options)
    assert ran.returncode == 0, ran.stderr
    row: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])["result"]["snapshot"]
    return row


def restored(site: Site, program: Program, name: object) -> str:
    """Restore a snapshot and say what is in its memory."""
    program.kill()
    ran = site.gpusnap("restore", name)
    assert ran.returncode == 0, ran.stderr
    return program.digest()


def remove(site: Site, *names: str) -> list[int]:
    ran = site.gpusnap("rm", *names, "--json")
    assert ran.returncode == 0, ran.stderr
    return [each["bytes_freed"] for each in json.loads(ran.stdout)["removed"]]


def test_three_snapshots_of_a_program_that_changes(site: Site, program: Program) -> None:
    digests: dict[str, str] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name in ("a", "b", "c"):
        digests[name] = program.change()
        rows[name] = take(site, program, name)
    images = sum(file.stat().st_size for file in (site.repository / "b/criu").iterdir())
    assert rows["a"]["parent"] is None
    assert rows["a"]["stored_bytes"] == rows["a"]["bytes"] > SIZE
    for before, name in (("a", "b"), ("b", "c")):
        assert rows[name]["parent"] == rows[before]["id"]
        assert rows[name]["bytes"] > SIZE
        # A twentieth lies in at most so many chunks of 1 MiB; the interpreter changes all it has.
        others = rows[name]["bytes"] - SIZE
        assert images < others < SIZE
        assert rows[name]["stored_bytes"] < others + SIZE // 20 + 3 * MIB
    shutil.copytree(site.repository / "c", site.folder / "copy")
    freed = remove(site, "a")
    assert freed[0] < rows["a"]["bytes"] - SIZE // 2
    assert restored(site, program, "b") == digests["b"]
    freed = remove(site, "b", "c")
    assert freed[1] > SIZE // 2, "the last that has a pack frees it"
    assert restored(site, program, site.folder / "copy") == digests["c"]


def test_what_is_told(site: Site, program: Program) -> None:
    digest = program.change()
    take(site, program, "a")
    plan = site.gpusnap("checkpoint", program.pid, "--incremental", "--dry-run")
    assert re.search(rf"^parent +{re.escape(str(site.repository))}/a$", plan.stdout, re.MULTILINE)
    said = site.gpusnap("checkpoint", program.pid, "b", "--parent", "a").stdout
    assert "were in its parent" in said
    remove(site, "b")
    assert restored(site, program, "a") == digest, "a parent without its child"


def test_a_parent_that_cannot_be(site: Site, program: Program, tmp_path: Path) -> None:
    """Refused before anything is locked: the target does not stop for a moment."""
    take(site, program, "a")
    refused(site, program, "absent", 10, "There is no snapshot 'absent'")
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(other)], check=True)
    try:
        shutil.copytree(site.repository, other / "repository")
        refused(site, program, str(other / "repository/a"), 2, "it is on another file system")
    finally:
        subprocess.run(["umount", str(other)], check=True)
    os.truncate(site.repository / "a/regions/index", 100)
    refused(site, program, "a", 12, "Snapshot a cannot be a parent")


def test_nothing_ends_for_a_parent_that_is_damaged(site: Site, program: Program) -> None:
    """Where the target would be gone its memory is not left to a rotten chunk."""
    take(site, program, "a")
    pack = max((site.repository / "a/regions").glob("*.pack"), key=lambda each: each.stat().st_size)
    flip(pack, 5000)
    ran = site.gpusnap("checkpoint", program.pid, "b", "--incremental", "--kill")
    assert ran.returncode == 12, ran.stderr
    assert f"{pack}, of the parent, is damaged in the chunk at 4096" in ran.stderr
    assert "Name another snapshot with --parent, or leave --incremental out" in ran.stderr
    digest = program.digest()
    assert not (site.repository / "b").exists()
    flip(pack, 5000)
    take(site, program, "b", "--kill")
    assert restored(site, program, "b") == digest


def test_room_for_what_changed_is_enough(site: Site, program: Program, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    size = f"size={(SIZE * 9 // 4) >> 20}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{size},mode=700", "tmpfs", room], check=True)
    try:
        for name, codes in (("a", set()), ("b", {"repository-space"})):
            ran = site.gpusnap(
                "checkpoint", program.pid, name, "--incremental", "--repo", room, "--json"
            )
            assert ran.returncode in {0, 3}, ran.stderr
            assert codes == {"repository-space"} & set(re.findall(r"[a-z]+-[a-z]+", ran.stdout))
            program.change()
    finally:
        subprocess.run(["umount", room], check=True)


def refused(site: Site, program: Program, parent: str, code: int, words: str) -> None:
    ran = site.gpusnap("checkpoint", program.pid, "b", "--parent", parent, "--json")
    assert ran.returncode == code, ran.stderr
    assert words in json.loads(ran.stderr.splitlines()[-1])["text"]
    assert "frozen" not in ran.stdout
    assert '"lock"' not in ran.stdout
    assert [path.name for path in site.repository.iterdir() if path.is_dir()] == ["a"]


@pytest.mark.parametrize("point", ["finished:copy", "started:write"])
def test_killed_in_the_middle(site: Site, program: Program, point: str) -> None:
    take(site, program, "a")
    before = tree(site.repository / "a")
    program.change()
    arguments = ["checkpoint", program.pid, "b", "--incremental"]
    ran = site.run("-m", "tests.e2e.faults", point, "gpusnap", site.folder / "report", *arguments)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert tree(site.repository / "a") == before
    assert site.gpusnap("recover", program.pid).returncode == 0
    assert program.digest()
    row = take(site, program, "b")
    assert row["bytes"] - row["stored_bytes"] > SIZE * 9 // 10
    assert tree(site.repository / "a") == before
    assert [path.name for path in site.repository.glob(".draft-*")] == []


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def test_a_flipped_bit_anywhere(site: Site) -> None:
    """Found by what a restore calls first, and by restores themselves."""
    program = Program(site, 17 * MIB, touched=MIB)
    take(site, program, "a", "--compress", "lz4")
    program.kill()
    snapshot = open_snapshot(site.repository / "a")
    files = [path for path in snapshot.path.rglob("*") if path.is_file() and path.stat().st_size]
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    random.seed(seed)
    for _ in range(60):
        path = random.choice(files)
        at, bit = random.randrange(path.stat().st_size), random.randrange(8)
        flip(path, at, bit)
        with pytest.raises(IntegrityError) as found:
            require_intact(snapshot, lambda _done, _total: None)
        named = "manifest.json" if path.name.startswith("manifest") else path.name
        assert named in found.value.text, (path, at, bit)
        flip(path, at, bit)
    for name, at in (("regions/000.pack", 5000), ("regions/index", 40), ("criu/pstree.img", 9)):
        flip(snapshot.path / name, at)
        ran = site.gpusnap("restore", "a")
        assert ran.returncode == 12
        assert name in ran.stderr
        await_true(lambda: identity(program.pid) is None, "nothing is left")
        flip(snapshot.path / name, at)
    require_intact(snapshot, lambda _done, _total: None)
