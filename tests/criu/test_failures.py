"""Targets and snapshots that CRIU refuses: the sentence a user reads, by the real CRIU."""

import ctypes
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpusnap.criu import Criu, Session
from gpusnap.errors import CriuError
from tests.criu.conftest import agree, dump_request, restore_request
from tests.criu.counters import Counter

pytestmark = pytest.mark.usefixtures("root")

Start = Callable[..., Counter]

OPEN = "name = sys.argv[1] + '.g'; g = os.open(name, os.O_RDWR | os.O_CREAT); "
PTRACE_DETACH, PTRACE_SEIZE = 17, 0x4206


def _refusal(criu: Criu, counter: Counter) -> CriuError:
    """The error of a dump that fails, with the target counting on."""
    with pytest.raises(CriuError) as caught:
        Session(criu).dump(dump_request(counter, leave_running=False), agree)
    assert counter.computes()
    # Whoever keeps the log says where: this folder goes.
    assert (counter.work / "dump.log").is_file()
    assert not any(str(counter.work) in detail for detail in caught.value.details)
    return caught.value


@pytest.mark.parametrize(
    ("setup", "text"),
    [
        ("import fcntl; fcntl.flock(out, fcntl.LOCK_EX)", "The target holds file locks"),
        (OPEN + "os.write(g, bytes(3000000)); os.unlink(name)", "deleted file .* too large"),
        (OPEN + "os.link(name, name + '2'); os.unlink(name)", "lives on under another name"),
        ("p = os.pidfd_open(os.getppid())", "holds a pidfd of process .*outside of it"),
    ],
    ids=["lock", "ghost", "link", "pidfd"],
)
def test_targets_that_a_dump_refuses(criu: Criu, start: Start, setup: str, text: str) -> None:
    error = _refusal(criu, start(setup))
    assert re.search(text, error.text)
    assert error.cure


def test_a_target_in_a_foreign_session(criu: Criu, start: Start) -> None:
    error = _refusal(criu, start(start_new_session=False))
    assert "belongs to the session of a process outside" in error.text


def test_a_connection_to_a_process_outside(criu: Criu, start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        accepted: list[socket.socket] = []
        thread = threading.Thread(target=lambda: accepted.append(server.accept()[0]))
        thread.start()
        setup = f"import socket; s = socket.socket(1); s.connect({str(tmp_path / 's')!r})"
        counter = start(setup)
        thread.join()
        with accepted[0]:
            assert "connected to a Unix socket" in _refusal(criu, counter).text


def test_a_network_connection(criu: Criu, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        counter = start(f"import socket; s = socket.create_connection(('127.0.0.1', {port}))")
        error = _refusal(criu, counter)
        assert error.text == "The target has an established TCP connection"
        assert "--tcp-established" in str(error.cure)


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split(".")[:2])


def test_a_network_connection_inside_the_tree(criu: Criu, start: Start) -> None:
    counter = start(
        "import socket; a = socket.create_server(('127.0.0.1', 0))\n"
        "b = socket.create_connection(a.getsockname()); c = a.accept()[0]"
    )
    request = dump_request(counter, leave_running=False, tcp_established=True)
    if criu.version < (4, 2, 0) and _kernel() >= (6, 16):
        with pytest.raises(CriuError, match=r"cannot save network sockets on kernels from 6.16"):
            Session(criu).dump(request, agree)
        assert counter.computes()
        return
    Session(criu).dump(request, agree)
    assert counter.wait_gone()
    Session(criu).restore(restore_request(counter, tcp_established=True), agree)
    assert counter.computes()


def test_file_locks_are_saved_when_asked_for(criu: Criu, start: Start) -> None:
    counter = start("import fcntl; fcntl.flock(out, fcntl.LOCK_EX)")
    Session(criu).dump(dump_request(counter, leave_running=False, file_locks=True), agree)
    assert counter.wait_gone()
    Session(criu).restore(restore_request(counter, file_locks=True), agree)
    assert counter.computes()


@contextmanager
def _traced(pid: int) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        libc.ptrace(0x4207, pid, None, None)  # PTRACE_INTERRUPT: only a stopped one is let go
        os.waitpid(pid, 0)
        libc.ptrace(PTRACE_DETACH, pid, None, None)


def test_a_tracer_is_named(criu: Criu, counter: Counter) -> None:
    with _traced(counter.pid):
        error = _refusal(criu, counter)
    assert error.text.startswith(f"CRIU could not stop process {counter.pid}: it is python")
    assert f"which PID {os.getpid()} (" in error.text


def test_a_target_that_is_gone(criu: Criu, counter: Counter) -> None:
    counter.end()
    with pytest.raises(CriuError, match=r"could not stop process \d+, and is gone by now"):
        Session(criu).dump(dump_request(counter), agree)


def test_a_full_disk(criu: Criu, counter: Counter) -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(counter.images)], check=True
    )
    try:
        assert _refusal(criu, counter).text == "There is no space left for the snapshot"
    finally:
        subprocess.run(["umount", str(counter.images)], check=True)


def _restore_fails(criu: Criu, counter: Counter) -> CriuError:
    with pytest.raises(CriuError) as caught:
        Session(criu).restore(restore_request(counter), agree)
    assert not counter.exists()
    return caught.value


def test_a_file_that_is_gone(criu: Criu, saved: Counter) -> None:
    saved.out.unlink()
    assert _restore_fails(criu, saved).text == (
        f"The file {saved.out} is gone, but the target had it open"
    )


def test_a_file_that_has_grown(criu: Criu, saved: Counter) -> None:
    with saved.out.open("a") as file:
        file.write("more")
    error = _restore_fails(criu, saved)
    assert error.text == f"The file {saved.out} has 24 bytes, but had 20 at the checkpoint"
    assert f"`truncate -s 20 {saved.out}`" in str(error.cure)
    os.truncate(saved.out, 20)
    assert saved.wait_gone()
    Session(criu).restore(restore_request(saved), agree)
    assert saved.computes()


@pytest.mark.parametrize("pattern", ["inventory.img", "core-*.img", "pages-*.img"])
def test_a_missing_image(criu: Criu, saved: Counter, pattern: str) -> None:
    for path in saved.images.glob(pattern):
        path.unlink()
    assert _restore_fails(criu, saved).text == "A file of the snapshot is missing or damaged"
