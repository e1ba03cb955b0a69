"""Memory goes past CRIU while CRIU saves the rest, into room that was found before."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import gpusnap
from gpusnap import dump_session, memory_copy
from gpusnap.checkpoint import run_checkpoint
from gpusnap.datapath import Kind, Reserve, Saver, Span
from gpusnap.dump_session import DumpSession
from gpusnap.errors import CriuError
from gpusnap.events import CriuNotified, Event
from gpusnap.hookspecs import Progress, hookimpl
from gpusnap.journal import entries
from gpusnap.plan import CheckpointOptions
from gpusnap.plugins import Backend, default_plugins
from gpusnap.regions import Settled, host_spans, settle
from gpusnap.repository import open_snapshot, verify
from gpusnap.target import alive, find_target, identity, read_maps
from gpusnap.types import DeviceImage, Target
from tests.e2e.jobs import Site, await_true, start_detached
from tests.e2e.test_new_pids import set_variables

HOST = """
import ctypes, mmap, pathlib, signal, sys, time
memory = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
c = ctypes.CDLL(None, use_errno=True)
c.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
# All of it may be run from then on
signal.signal(signal.SIGUSR1, lambda *_: c.mprotect(address, len(memory), 7))
content = bytes(range(1, 251)) * (len(memory) // 250)
memory[:len(content)] = content
mark = pathlib.Path(sys.argv[1])
while True:
    if memory[:len(content)] == content:
        mark.touch()
    time.sleep(0.01)
"""

DEVICE = """
import os, sys, time
from gpusnap.testing.device import SimulatedDevice

device = SimulatedDevice.open()
buffer = device.allocate(48 << 20)
content = os.urandom(4096) * (48 << 8)
buffer.copy_in(content)
while True:
    device.launch(lambda memory: None, buffer)
    if buffer.copy_out() == content:
        open(sys.argv[1], "w").close()
    time.sleep(0.01)
"""


class Log:
    """What happened, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        if isinstance(event, CriuNotified):
            self.lines.append(event.script)


class Program:
    """A process that says by touching a file that it runs and that its memory is right."""

    def __init__(self, folder: Path, code: str, patch: pytest.MonkeyPatch) -> None:
        site = Site.make(folder / "site")
        set_variables(patch, site)
        self._mark = folder / "mark"
        command = [sys.executable, "-c", code, str(self._mark)]
        start_detached(command, folder / "pid", site.environment)
        self.pid = int((folder / "pid").read_text())
        await_true(self.runs, "it has begun")

    def runs(self) -> bool:
        self._mark.unlink(missing_ok=True)
        deadline = time.monotonic() + 10
        while not self._mark.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._mark.exists()

    @property
    def lives(self) -> bool:
        found = identity(self.pid)
        return found is not None and alive(found)

    def end(self) -> None:
        if self.lives:
            os.kill(self.pid, signal.SIGKILL)
            await_true(lambda: identity(self.pid) is None, "it is gone")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    program = Program(tmp_path, HOST, monkeypatch)
    yield program
    program.end()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    program = Program(tmp_path, DEVICE, monkeypatch)
    yield program
    program.end()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    log = Log()
    start, add, wait = Saver.start, Saver.add, Saver.wait_copied

    def started(saver: Saver, spans: Sequence[Span], *files: Any, more: bool) -> None:
        log.lines.append("copying devices" if more else "copying")
        start(saver, spans, *files, more=more)

    def added(saver: Saver, spans: Sequence[Span]) -> None:
        log.lines.append("copying the rest")
        add(saver, spans)

    def waited(saver: Saver, progress: Progress) -> None:
        wait(saver, progress)
        log.lines.append("copied")

    monkeypatch.setattr(Saver, "start", started)
    monkeypatch.setattr(Saver, "add", added)
    monkeypatch.setattr(Saver, "wait_copied", waited)
    default_plugins().register(log, "log")
    yield log
    default_plugins().unregister(log)


def brought_back(program: Program, name: str) -> None:
    snapshot = open_snapshot(Path(os.environ["GPUSNAP_REPO"]) / name)
    assert verify(snapshot, lambda _done, _of: None).intact
    program.end()
    assert gpusnap.restore_checkpoint(name).root_pid == program.pid
    assert program.runs()


@pytest.mark.parametrize("leave_running", [True, False])
def test_memory_is_copied_while_criu_saves(host: Program, log: Log, leave_running: bool) -> None:
    gpusnap.create_checkpoint(host.pid, "one", leave_running=leave_running)
    assert log.lines == ["pre-dump", "query-ext-files", "copying", "post-dump", "copied"]
    assert host.lives is leave_running
    brought_back(host, "one")


@pytest.mark.parametrize("leave_running", [True, False])
def test_device_memory_is_copied_while_criu_starts(
    device: Program, log: Log, leave_running: bool
) -> None:
    gpusnap.create_checkpoint(device.pid, "one", leave_running=leave_running)
    dump = ["pre-dump", "query-ext-files", "copying the rest", "post-dump", "copied"]
    assert log.lines == ["copying devices", *dump]
    assert device.lives is leave_running
    brought_back(device, "one")


def test_what_a_program_wants_first_goes_before_device_memory(
    device: Program, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = next(iter(host_spans(find_target(device.pid), ())))
    options = CheckpointOptions(first=((span.start, span.length),))
    run_checkpoint(device.pid, "one", options=options)
    assert log.lines == ["pre-dump", "query-ext-files", "copying", "post-dump", "copied"]
    brought_back(device, "one")


@pytest.mark.parametrize("leave_running", [True, False])
def test_a_dump_that_is_made_again_copies_once_all_stand_still(
    device: Program, log: Log, monkeypatch: pytest.MonkeyPatch, leave_running: bool
) -> None:
    """Nothing is left of what was copied before."""
    times: list[int] = []

    def moved(spans: Sequence[Span], target: Target) -> Settled:
        times.append(1)
        settled = settle(spans, target)
        kept = [span for span in settled.spans if len(times) > 1 or span.kind is not Kind.DEVICE]
        return settled._replace(spans=tuple(kept))

    monkeypatch.setattr(memory_copy, "settle", moved)
    gpusnap.create_checkpoint(device.pid, "one", leave_running=leave_running)
    again = ["pre-dump", "query-ext-files", "copying", "post-dump", "copied"]
    assert log.lines == ["copying devices", "pre-dump", "query-ext-files", *again]
    brought_back(device, "one")


def test_a_criu_that_does_not_ask_for_files(
    host: Program, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified = DumpSession._notified

    def leave_out(session: DumpSession, script: str, pid: int | None, **more: Any) -> bool:
        return script == "query-ext-files" or notified(session, script, pid, **more)

    monkeypatch.setattr(DumpSession, "_notified", leave_out)
    gpusnap.create_checkpoint(host.pid, "one")
    assert log.lines == ["pre-dump", "post-dump", "copying", "copied"]
    brought_back(host, "one")


def test_memory_that_may_be_run_is_copied_once_criu_is_done(
    host: Program, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU puts instructions of its own into such memory, and takes them out again."""

    def late(*arguments: Any) -> tuple[Span, ...]:
        spans = host_spans(*arguments)
        os.kill(host.pid, signal.SIGUSR1)
        await_true(lambda: any(each.permissions == "rwxp" for each in read_maps(host.pid)), "it is")
        return spans

    monkeypatch.setattr(dump_session, "host_spans", late)
    gpusnap.create_checkpoint(host.pid, "one")
    assert log.lines == ["pre-dump", "query-ext-files", "post-dump", "copying", "copied"]
    brought_back(host, "one")


def test_a_dump_that_fails_ends_the_copying(
    host: Program, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    abort = Saver.abort

    def see(saver: Saver) -> None:
        ended.append(saver._crew._stopped and host.runs())
        abort(saver)

    def refuse(_session: DumpSession, *, guarded: bool) -> None:
        raise CriuError("An image is missing")

    monkeypatch.setattr(Saver, "abort", see)
    monkeypatch.setattr(DumpSession, "_check_images", refuse)
    with pytest.raises(CriuError, match="An image is missing"):
        gpusnap.create_checkpoint(host.pid, "one", leave_running=False)
    assert log.lines == ["pre-dump", "query-ext-files", "copying", "post-dump"]
    assert ended == [True], "it was called off, and the program ran before it was waited for"
    assert entries() == ()
    assert sorted(os.listdir(os.environ["GPUSNAP_REPO"])) == ["gpusnap.json", "logs"]


@pytest.mark.parametrize("leave_running", [True, False])
def test_room_is_found_while_the_device_is_checkpointed(
    device: Program, monkeypatch: pytest.MonkeyPatch, leave_running: bool
) -> None:
    """Only where nothing runs on that could be slowed down, or would use the memory."""
    repository = Path("/dev/shm") / f"gpusnap-test-{os.getpid()}"
    checkpoint, create = Backend.checkpoint, Reserve.create
    rooms: list[int] = []

    def slow(*arguments: Any) -> DeviceImage:
        image = checkpoint(*arguments)
        time.sleep(1)
        return image

    def note(found: Reserve, path: Path) -> int:
        descriptor = create(found, path)
        rooms.append(os.fstat(descriptor).st_blocks * 512)
        return descriptor

    monkeypatch.setattr(Backend, "checkpoint", slow)
    monkeypatch.setattr(Reserve, "create", note)
    monkeypatch.setenv("GPUSNAP_REPO", str(repository))
    try:
        gpusnap.create_checkpoint(device.pid, "one", leave_running=leave_running)
        if leave_running:
            assert rooms == []
        else:
            assert sum(rooms) >= 48 << 20
        assert sorted(os.listdir(repository)) == ["gpusnap.json", "one"]
        brought_back(device, "one")
    finally:
        device.end()
        shutil.rmtree(repository, ignore_errors=True)
