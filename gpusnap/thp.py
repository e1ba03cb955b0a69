"""Huge pages for memory that is about to be filled: the machine's switch, and its way back.

Where the switch says ``always``, the kernel gives out memory in pages of 2 MiB instead of 4 KiB,
which makes filling much memory faster (Documentation/admin-guide/mm/transhuge.rst). It is one
switch for the whole machine. So its earlier value is written down before it is set, in the state
folder; all gpusnaps that need it set hold a lock that the kernel drops with their life; and the
last of them, or ``gpusnap recover`` where they died, puts the value back.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from gpusnap.errors import GpusnapError
from gpusnap.events import Event, Found
from gpusnap.journal import locked_directory, state_directory
from gpusnap.types import Finding, Severity

_ALWAYS = "always"
_RECORD = "huge-pages"
_LOCK = "huge-pages.lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Switch:
    """The kernel's file: all values it can have, the present one in brackets."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> str:
        """The present value.

        Raises:
            GpusnapError: It cannot be read.
        """
        with self._refusals("read"):
            return self.path.read_text().partition("[")[2].partition("]")[0]

    def write(self, value: str) -> None:
        """Set it for the whole machine.

        Raises:
            GpusnapError: It cannot be set.
        """
        with self._refusals("written to"):
            self.path.write_text(value)

    @contextlib.contextmanager
    def _refusals(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise GpusnapError(f"{self.path} cannot be {doing}: {error.strerror}") from error


SWITCH = Switch(Path("/sys/kernel/mm/transparent_hugepage/enabled"))


class _Record(msgspec.Struct, frozen=True):
    """What the switch said before gpusnap set it, and in which boot that was."""

    value: Annotated[str, msgspec.Meta(pattern="^(madvise|never)$")]
    boot_id: str


def check_switch() -> Iterator[Finding]:
    """Look for what keeps huge pages from being switched on."""
    if not SWITCH.path.exists():
        yield _unavailable("this kernel has none")
    elif not os.access(SWITCH.path, os.W_OK):
        yield _unavailable(f"{SWITCH.path} is read-only")


def _unavailable(reason: str) -> Finding:
    return Finding(
        code="huge-pages-unavailable",
        severity=Severity.WARNING,
        text=f"Huge pages cannot be switched on, so filling memory takes longer: {reason}",
        cure="Leave --thp out, or run where the switch can be set, outside a container",
    )


def _left(reason: str) -> Finding:
    return Finding(
        code="huge-pages-left",
        severity=Severity.WARNING,
        text=f"The machine's switch for huge pages was not put back: {reason}",
        cure="Run gpusnap recover",
    )


@contextlib.contextmanager
def huge_pages(emit: Callable[[Event], None], *, wanted: bool) -> Iterator[None]:
    """Have the kernel give huge pages to the whole machine meanwhile.

    It never fails: without huge pages all is as before, only slower. What :func:`check_switch`
    finds is for the caller to tell beforehand.

    Args:
        emit: Told what did not work.
        wanted: False to change nothing.
    """
    if not wanted or any(check_switch()):
        yield
        return
    try:
        with contextlib.ExitStack() as holding:
            _attempt(partial(_join, holding), emit, _unavailable)
            yield
    finally:
        try:
            _attempt(put_back, emit, _left)
        except KeyboardInterrupt:  # it came in the middle of the way back, which is a short one
            _attempt(put_back, emit, _left)
            raise


def _attempt(
    step: Callable[[], object], emit: Callable[[Event], None], finding: Callable[[str], Finding]
) -> None:
    try:
        step()
    except GpusnapError as error:
        emit(Found(finding=finding(error.text)))


def _join(holding: contextlib.ExitStack) -> None:
    """Be one of those that need the switch set; the first one sets it."""
    with locked_directory() as folder:
        lock = holding.enter_context(_lock_file(folder))
        try:
            if _alone(lock):
                _restore(folder / _RECORD)  # left by holders that died
                _set(folder / _RECORD)
        finally:
            fcntl.flock(lock, fcntl.LOCK_SH)


def put_back() -> str | None:
    """Put the switch back where no living gpusnap needs it set.

    A value that somebody else has set meanwhile stays.

    Returns:
        What the switch says now, or None where there was nothing to put back.

    Raises:
        GpusnapError: It cannot be put back.
    """
    if not (state_directory() / _RECORD).exists():
        return None
    with locked_directory() as folder, _lock_file(folder) as lock:
        return _restore(folder / _RECORD) if _alone(lock) else None


@contextlib.contextmanager
def _lock_file(folder: Path) -> Iterator[int]:
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        yield lock
    finally:
        os.close(lock)


def _alone(lock: int) -> bool:
    """True where no other holder lives; none can come while the state folder is locked."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _set(record: Path) -> None:
    value = SWITCH.read()
    if value == _ALWAYS:
        return
    draft = record.with_suffix(".new")
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(_Record(value, _boot_id())))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(record)
    SWITCH.write(_ALWAYS)


def _restore(record: Path) -> str | None:
    try:
        saved = msgspec.json.decode(record.read_bytes(), type=_Record)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        msg = f"The record {record} of the switch {SWITCH.path} cannot be read"
        raise GpusnapError(
            msg, cure="Set the switch as you like it and remove the record"
        ) from None
    if saved.boot_id == _boot_id() and SWITCH.read() == _ALWAYS:
        SWITCH.write(saved.value)
    record.unlink()
    return SWITCH.read()


def _boot_id() -> str:
    return _BOOT.read_text().strip()
