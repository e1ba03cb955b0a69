"""Whether a CRIU works with the guard, found out by a dump and a restore of a small process."""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gpusnap.criu.find import Criu
from gpusnap.criu.guard import GUARD_NAME, Range, guard_file, guarded
from gpusnap.criu.images import inventory_plugins
from gpusnap.criu.log import MARK
from gpusnap.criu.request import DumpRequest, RestoreRequest
from gpusnap.criu.session import Notify, Session
from gpusnap.errors import CriuError, GpusnapError
from gpusnap.folders import data_directory
from gpusnap.types import CriuOptions

SECONDS = 30
"""How long each of the three runs of CRIU may take; they take less than one."""
PAGES = 16
"""Pages in each third of the test's memory, of which the middle one is hidden."""

_PROGRAM = """
import ctypes, mmap, os, sys, time
mark, count = bytes.fromhex(sys.argv[1]), int(sys.argv[2])
kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
memory = mmap.mmap(-1, count * mmap.PAGESIZE, flags=kind)
for page in range(count):
    memory.write((mark + page.to_bytes(8, "little")) * (mmap.PAGESIZE // 16))
where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
with open("address.new", "w") as file:
    file.write(str(where))
os.rename("address.new", "address")
while True:
    time.sleep(1)
"""
"""Every page of its memory holds a mark and the page's number, over and over."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """For which CRIU, guard and kernel the test was passed."""

    program: str
    size: int
    changed_ns: int
    version: str
    guard_sha256: str
    kernel: str

    @property
    def path(self) -> Path:
        """Where it is kept."""
        key = hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]
        return data_directory() / f"guard-{key}.json"

    @property
    def kept(self) -> bool:
        """Whether the test was passed before."""
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self.path.read_bytes(), type=Proof) == self
        return False

    def keep(self) -> None:
        """Spare the next command the test; one that cannot write tests again."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(msgspec.json.encode(self))


def guard_works(criu: Criu) -> str | None:
    """Whether memory can be kept out of dumps by this CRIU.

    The first time it is tried; that takes about a second. A success is remembered for that very
    CRIU, guard and kernel, a failure is not: its cause may lie elsewhere.

    Returns:
        None if so, else the reason in a sentence.
    """
    if os.geteuid() != 0:
        return "Keeping memory out of CRIU's dump needs root"
    try:
        proof = _proof(criu)
        if not proof.kept:
            _try(criu)
            proof.keep()
    except _Unfit as reason:
        return str(reason)
    except GpusnapError as error:
        return error.text
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"The guard could not be tried with CRIU {criu.version_text}: {error}"
    return None


class _Unfit(Exception):
    """Why the two do not fit."""


def _proof(criu: Criu) -> Proof:
    status = Path(criu.command[-1]).stat()
    return Proof(
        program=criu.command[-1],
        size=status.st_size,
        changed_ns=status.st_mtime_ns,
        version=criu.version_text,
        guard_sha256=hashlib.sha256(guard_file().read_bytes()).hexdigest(),
        kernel=os.uname().release,
    )


class _Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The process that is dumped: three pieces of memory in a row, the middle one hidden."""

    folder: Path
    process: subprocess.Popen[bytes]
    mark: bytes
    address: int

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def hidden(self) -> Range:
        length = PAGES * _page()
        return Range(self.pid, self.address + length, length)

    def content(self, number: int) -> bytes:
        return (self.mark + number.to_bytes(8, "little")) * (_page() // 16)


def _page() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def _try(criu: Criu) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="gpusnap-guard-") as name,
        _subject(Path(name)) as subject,
    ):
        _dump(criu, subject)
        _check_images(criu, subject)
        _expect_refusal(criu, subject)
        _restore(criu, subject)


@contextmanager
def _subject(folder: Path) -> Iterator[_Subject]:
    mark = os.urandom(8)
    for each in ("images", "work"):
        (folder / each).mkdir()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, mark.hex(), str(3 * PAGES)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    # What comes back is held at post-restore and then taken down by CRIU, so this is all to end
    try:
        address = _await_address(process, folder / "address")
        yield _Subject(folder=folder, process=process, mark=mark, address=address)
    finally:
        process.kill()
        process.wait()


def _await_address(process: subprocess.Popen[bytes], file: Path) -> int:
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            return int(file.read_text())
        time.sleep(0.005)
    raise _Unfit("The process to try the guard with did not start")


def _dump(criu: Criu, subject: _Subject) -> None:
    request = DumpRequest(
        pid=subject.pid,
        images=subject.images,
        work=subject.work,
        leave_running=False,
        timeout_us=SECONDS * 1_000_000,
        options=guarded(CriuOptions(), subject.work, [subject.hidden]),
    )
    try:
        Session(criu).dump(request, _agree)
        # Its PID is free for the restore only once it was waited for
        subject.process.wait(SECONDS)
    except CriuError as error:
        raise _Unfit(
            f"CRIU {criu.version_text} cannot dump with the guard: {_said(error)}"
        ) from error


def _check_images(criu: Criu, subject: _Subject) -> None:
    if GUARD_NAME not in inventory_plugins(subject.images):
        raise _Unfit(f"CRIU {criu.version_text} does not name the guard in its images")
    saved = _saved_pages(subject)
    hidden = set(range(PAGES, 2 * PAGES))
    if saved & hidden:
        raise _Unfit(f"CRIU {criu.version_text} saves memory that the guard hides from it")
    if saved | hidden != set(range(3 * PAGES)):
        raise _Unfit(f"The guard hides more from CRIU {criu.version_text} than it was told to")


def _saved_pages(subject: _Subject) -> set[int]:
    """Which pages of the test's memory are in the images, whole."""
    known = {subject.content(number): number for number in range(3 * PAGES)}
    found = set()
    for path in subject.images.glob("pages-*.img"):
        data = path.read_bytes()
        pages = (data[at : at + _page()] for at in range(0, len(data), _page()))
        found |= {known[page] for page in pages if page in known}
    return found


def _expect_refusal(criu: Criu, subject: _Subject) -> None:
    try:
        _run_restore(criu, subject, CriuOptions(), lambda _script, _pid: False)
    except CriuError as error:
        if f"Missing required plugin: {GUARD_NAME}" in "".join(error.details):
            return
    raise _Unfit(f"CRIU {criu.version_text} would restore what the guard saved without the guard")


def _restore(criu: Criu, subject: _Subject) -> None:
    """Have the process come back up to the point where it would run, and look at its memory."""
    seen: list[bytes] = []

    def look(script: str, _pid: int | None) -> bool:
        if script == "post-restore":
            seen.append(_memory(subject))
        return script != "post-restore"

    try:
        _run_restore(criu, subject, guarded(CriuOptions(), subject.work, None), look)
    except CriuError as error:
        if not seen:
            text = f"CRIU {criu.version_text} cannot restore with the guard: {_said(error)}"
            raise _Unfit(text) from error
    if seen != [_expected(subject)]:
        raise _Unfit(
            f"CRIU {criu.version_text} with the guard brings back other memory than it saved"
        )


def _run_restore(criu: Criu, subject: _Subject, options: CriuOptions, notify: Notify) -> None:
    request = RestoreRequest(
        images=subject.images,
        work=subject.work,
        timeout_us=SECONDS * 1_000_000,
        options=options,
    )
    Session(criu).restore(request, notify)


def _memory(subject: _Subject) -> bytes:
    with Path(f"/proc/{subject.pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(subject.address)
        return memory.read(3 * PAGES * _page())


def _expected(subject: _Subject) -> bytes:
    around = [subject.content(number) for number in range(3 * PAGES)]
    around[PAGES : 2 * PAGES] = [bytes(_page())] * PAGES
    return b"".join(around)


def _agree(_script: str, _pid: int | None) -> bool:
    return True


def _said(error: CriuError) -> str:
    """CRIU's own words where its log has them, else the sentence that was made of them."""
    if error.details and MARK.search(error.details[0]):
        return MARK.split(error.details[0])[-1]
    return error.text
