"""What hostile bytes are fed to besides a snapshot's own files: images of CRIU and its plugins, and
what gpusnap writes down or leaves in memory for another gpusnap. As in ``targets.py``, each
function ends quietly, or the code is at fault.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import msgspec
from google.protobuf.message import Message

from gpusnap.criu import AbstractName, images_pb2, rename_sockets
from gpusnap.criu.images import (
    COMMON_MAGIC,
    FILES_MAGIC,
    LENGTH,
    TREE_MAGIC,
    abstract_names,
    open_files,
    socket_files,
    taken_pids,
)
from gpusnap.errors import BusyError, DeviceError, GpusnapError
from gpusnap.jobs.outputs import Length
from gpusnap.jobs.record import Run, RunOptions, read_file, write_run
from gpusnap.jobs.snapshots import Ledger, Taken, newest_number
from gpusnap.journal import Entry, Journal, Task, entries, file_name, unreadable
from gpusnap.mailbox import (
    MAGIC,
    Answer,
    Failure,
    Mailbox,
    decode_answer,
    encode_answer,
    read_state,
)
from gpusnap.metrics.textfile import read as read_figures
from gpusnap.target import myself
from gpusnap.types import DeviceUse, ProcessId
from gpusnap_amd.images_pages import page_files
from gpusnap_amd.images_rules import describe_images, verify_images
from tests.hostile.targets import folder_of


def files(data: bytes) -> None:
    """Read CRIU's list of files, and give its sockets other names."""
    with folder_of({"files.img": data}) as folder, suppress(GpusnapError):
        for read in (open_files, socket_files):
            read(folder)
        other = {name: AbstractName(name.kind, b"\0other") for name in abstract_names(folder)}
        (folder / "links").mkdir()
        (folder / "links/files.img").symlink_to(folder / "files.img")
        rename_sockets(folder / "links", other)
        assert set(abstract_names(folder / "links")) == set(other.values())
        assert (folder / "files.img").read_bytes() == data


def tree(data: bytes) -> None:
    """Read all numbers in CRIU's list of processes."""
    with folder_of({"pstree.img": data}) as folder, suppress(GpusnapError):
        assert 0 not in taken_pids(folder)


def amdgpu(images: dict[str, bytes]) -> None:
    """Read images of CRIU's amdgpu plugin as a checkpoint does, once it has verified them."""
    with folder_of(images) as folder:
        if verify_images(folder):
            return
        msgspec.json.encode(describe_images(folder))
        for found in page_files(folder):
            assert sum(found.parts) == (folder / found.name).stat().st_size


@contextmanager
def variable(name: str, value: Path) -> Iterator[None]:
    with patch.dict(os.environ, {name: str(value)}):
        yield


def journal(data: bytes) -> None:
    """Look at a journal, and begin an operation on a process that it may be of."""
    with folder_of({file_name(7): data}) as folder, variable("GPUSNAP_STATE_DIR", folder):
        assert len(entries()) + len(unreadable()) == 1
        wanted = Entry(
            task=Task.CHECKPOINT, owner=myself(), processes=(myself(),), claimed=(), backend=None
        )
        with suppress(BusyError):
            Journal.begin(wanted).finish()


def run(data: bytes) -> None:
    """Read the file of a job's run, and write it again."""
    with folder_of({"run.json": data}) as folder, suppress(GpusnapError):
        found = read_file(folder / "run.json", Run)
        assert found is not None
        write_run(folder, found)
        assert read_file(folder / "run.json", Run) == found


def ledger(data: bytes) -> None:
    """Read the list of a run's snapshots, and look for the newest."""
    of = Run(name="job", directory="/", repository="/nowhere", boot_id="")
    with folder_of({"snapshots.json": data}) as folder, suppress(GpusnapError):
        assert read_file(folder / "snapshots.json", Ledger) is not None
        assert newest_number(folder, of) == 0


def mailbox(data: bytes) -> None:
    """Look at what should be a mailbox in the memory of a program: of this one."""
    length, nonce = 64, bytes(16)
    content = MAGIC + nonce + data
    memory = ctypes.create_string_buffer(content[:length], length)
    address = ctypes.addressof(memory)
    place = Mailbox(pid=os.getpid(), address=address, length=length, nonce=nonce.hex())
    read_state(os.getpid(), place)


def answer(data: bytes) -> None:
    """Read what a program finds in its mailbox."""
    with suppress(msgspec.DecodeError):
        found = decode_answer(data)
        assert decode_answer(encode_answer(found, room=1 << 30)) == found


def figures(data: bytes) -> None:
    """Read the file in which the figures of all operations add up."""
    with folder_of({"metrics.prom": data}) as folder, suppress(GpusnapError):
        read_figures(folder / "metrics.prom")


def _framed(*messages: Message) -> bytes:
    data = (each.SerializeToString() for each in messages)
    return b"".join(LENGTH.pack(len(each)) + each for each in data)


def _files() -> bytes:
    file, unix = images_pb2.FileEntry, images_pb2.UnixSocket
    regular = images_pb2.RegularFile(name=b"/var/log/job", flags=1, pos=5, size=9)
    entries = (
        file(id=1, reg=regular),
        file(id=2, usk=unix(type=1, state=10, uflags=0, name=b"\0abstract")),
        file(id=3, usk=unix(type=2, state=7, uflags=0, name=b"/run/socket\0")),
    )
    return COMMON_MAGIC + FILES_MAGIC + _framed(*entries)


def _journal() -> bytes:
    entry = Entry(
        task=Task.RESTORE,
        owner=myself(),
        processes=(myself(), ProcessId(8, 9)),
        claimed=(8,),
        backend="nvidia",
        executables=("/bin/true",),
        criu=ProcessId(9, 10),
        uses=(DeviceUse(pid=8, device_uuid="GPU-0", memory=1 << 30),),
        path="/somewhere",
    )
    return msgspec.json.encode(entry)


FIGURES = b"""# Written by gpusnap, which adds to these figures.
# HELP gpusnap_snapshots_total Snapshots that were published.
# TYPE gpusnap_snapshots_total counter
gpusnap_snapshots_total{kind="full"} 1.0
"""

SEEDS: dict[str, tuple[bytes, ...]] = {
    "files": (_files(),),
    "tree": (COMMON_MAGIC + TREE_MAGIC + _framed(images_pb2.TreeEntry(pid=7, pgid=6, sid=5)),),
    "journal": (_journal(),),
    "run": (
        msgspec.json.encode(
            Run(
                name="job",
                command=("python", "train.py"),
                directory="/",
                repository="/srv/snapshots",
                options=RunOptions(every_us=60_000_000, keep_last=3, tag=("a",)),
                root=ProcessId(7, 8),
                boot_id="b",
            )
        ),
    ),
    "ledger": (
        msgspec.json.encode(
            Ledger(
                last=2,
                taken=(Taken(name="job-000002", lengths=(Length("/o", 1, 2, 3),), complete=True),),
            )
        ),
    ),
    "mailbox": tuple(struct.pack("<II", length, state) for length in (0, 5) for state in range(5)),
    "answer": (
        encode_answer(Answer(outcome="saved", path="/a", devices=("GPU-0",), overrides={"a": "b"})),
        encode_answer(Answer(outcome="failed", failure=Failure.of(DeviceError("No", pid=7)))),
    ),
    "figures": (FIGURES,),
}
"""Sound bytes for each function that takes bytes."""
