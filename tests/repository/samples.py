"""Small snapshots for the tests of the repository."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpusnap.datapath import Compression, Saver, Saving
from gpusnap.repository import (
    Draft,
    FileDigest,
    Host,
    Manifest,
    Repository,
    Snapshot,
    new_id,
    open_parent,
    timestamp,
    version_for,
)
from gpusnap.types import Process, ProcessId, Target
from tests.datapath.memory import Memory

NOBODY = 65534
FILES = {
    "criu/core-7.img": b"registers",
    "criu/mm-7.img": b"",
    "criu/pages-1.img": bytes(range(256)) * 20,
    "logs/dump.log": b"(00.000000) it went well\n",
}
"""What is in a snapshot of :func:`take`."""

TARGET = Target(
    processes=(
        Process(
            id=ProcessId(7, 1234),
            parent_pid=1,
            session_id=7,
            command=("train", "--epochs=3"),
            name="train",
        ),
    )
)
HOST = Host(kernel="6.1.0", machine="x86_64", hostname="node", boot_id="b")


def silent(_done: int, _total: int) -> None:
    """Progress that nobody looks at."""


def manifest(name: str, files: tuple[FileDigest, ...] = (), created: str = "") -> Manifest:
    return Manifest(
        format_version=version_for(files),
        id=new_id(),
        name=name,
        created=created or timestamp(),
        gpusnap_version="0.1.0",
        target=TARGET,
        host=HOST,
        files=files,
    )


def fill(draft: Draft, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        (draft.contents / path).parent.mkdir(exist_ok=True)
        (draft.contents / path).write_bytes(data)


def take(
    repository: Repository, name: str, files: dict[str, bytes] = FILES, created: str = ""
) -> Snapshot:
    """Make a snapshot as a checkpoint does."""
    with repository.prepare(name) as draft:
        fill(draft, files)
        return draft.publish(manifest(name, draft.digest(silent), created))


SAVING = Saving(compression=Compression.NONE, workers=1, incremental=True)


def take_memory(
    repository: Repository,
    name: str,
    memory: Memory,
    parent: Snapshot | None = None,
    saving: Saving = SAVING,
) -> Snapshot:
    """Make a snapshot with memory that went past CRIU, as a checkpoint does."""
    with repository.prepare(name) as draft:
        fill(draft, {"criu/core-7.img": b"registers"})
        saver = Saver(draft.regions, saving, open_parent(parent, draft) if parent else None)
        saver.copy((memory.span,), silent)
        saved = msgspec.structs.replace(
            manifest(name),
            memory=saver.finish(silent),
            parent=parent.manifest.id if parent else None,
            files=draft.digest(silent, saver.packs),
        )
        return draft.publish(saved)


def alter(snapshot: Snapshot, **changes: object) -> None:
    """Write another manifest, with the digest that belongs to it."""
    from gpusnap.repository.manifest import digest_line

    data = msgspec.json.encode(msgspec.to_builtins(snapshot.manifest) | changes)
    (snapshot.path / "manifest.json").write_bytes(data)
    (snapshot.path / "manifest.json.sha256").write_bytes(digest_line(data))


def in_version_1(snapshot: Snapshot) -> None:
    """Give a snapshot the manifest that it had before large files were summed in parts."""
    files = msgspec.to_builtins(snapshot.manifest.files)
    for file in files:
        file.pop("blake3_parts", None)
        data = (snapshot.path / file["path"]).read_bytes()
        file["sha256"] = hashlib.sha256(data).hexdigest()
    alter(snapshot, format_version=1, files=files)


def hidden(repository: Path) -> list[str]:
    """What operations left behind."""
    return sorted(name for name in os.listdir(repository) if name.startswith("."))


@contextmanager
def powerless(folder: Path) -> Iterator[None]:
    """Go on as a user who may not look into a folder."""
    user = os.geteuid()
    folder.chmod(0)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o700)
