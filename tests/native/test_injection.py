"""System calls inside another process, which must notice nothing."""

import errno
import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusnap import native
from gpusnap.errors import TargetError
from gpusnap.native import injection

GETPID, CLOSE, MUNMAP = {"x86_64": (39, 3, 11), "aarch64": (172, 57, 215)}[os.uname().machine]

Start = Callable[[str], "subprocess.Popen[str]"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="Needs root: processes are traced")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs that print a line when they are ready."""
    processes: list[subprocess.Popen[str]] = []

    def run(code: str) -> "subprocess.Popen[str]":
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(code)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def ready(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def settled(pid: int, wanted: str) -> bool:
    end = time.monotonic() + 60
    while state(pid) != wanted and time.monotonic() < end:
        time.sleep(0.005)
    return state(pid) == wanted


def test_results_are_the_kernels(start: Start) -> None:
    process = start("print('ready', flush=True); input()")
    ready(process)
    results = native.call_inside(process.pid, [(GETPID,), (CLOSE, 9999), (GETPID,)])
    assert results == [process.pid, -errno.EBADF, process.pid]
    assert process.communicate("go on\n")[0] == ""
    assert process.returncode == 0


def test_it_closes_and_unmaps(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8192))
    process = start(
        f"""
        import mmap, os
        descriptor = os.open({str(tmp_path / "file")!r}, os.O_RDWR)
        mapping = mmap.mmap(descriptor, 8192)
        print(descriptor, flush=True)
        input()
        """
    )
    descriptor = int(ready(process))
    maps = Path(f"/proc/{process.pid}/maps")
    line = next(line for line in maps.read_text().splitlines() if str(tmp_path) in line)
    start_at, end = (int(part, 16) for part in line.split()[0].split("-"))
    calls = [(MUNMAP, start_at, end - start_at), (CLOSE, descriptor)]
    assert native.call_inside(process.pid, calls) == [0, 0]
    assert str(tmp_path) not in maps.read_text()
    assert not Path(f"/proc/{process.pid}/fd/{descriptor}").exists()


WAITS = {
    "read": "import os; assert os.read(0, 1) == b'x'",
    "sleep": "import time; t = time.monotonic(); time.sleep(0.6)\n"
    "assert time.monotonic() - t > 0.6",
    "poll": "import select; p = select.poll(); p.register(0, select.POLLIN); assert p.poll(90_000)",
    "epoll": "import select; p = select.epoll(); p.register(0, 1); assert p.poll(90)",
    "lock": "import threading\n"
    "l = threading.Lock(); l.acquire(); threading.Timer(0.5, l.release).start(); l.acquire()",
    "signal": "import signal, threading, time; signal.pthread_sigmask(0, {10})\n"
    "threading.Timer(0.5, lambda: __import__('os').kill(__import__('os').getpid(), 10)).start()\n"
    "assert signal.sigwait({10}) == 10",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_call_that_it_waits_in_goes_on(start: Start, wait: str) -> None:
    code = f"import sys\nprint('ready', flush=True)\n{WAITS[wait]}\nprint('went on', flush=True)"
    process = start(f"{code}\nsys.stdin.read()")  # it must not end under the calls
    ready(process)
    assert settled(process.pid, "S")
    for _ in range(5):
        assert native.call_inside(process.pid, [(GETPID,)] * 3) == [process.pid] * 3
    assert process.communicate("x")[0] == "went on\n"
    assert process.returncode == 0


def test_what_it_computes_stays_right(start: Start) -> None:
    process = start(
        """
        import hashlib
        print("ready", flush=True)
        input()
        value = b""
        for _ in range(300_000):
            value = hashlib.sha256(value).digest()
        print(value.hex(), flush=True)
        input()
        """
    )
    expected = start(
        """
        import hashlib
        value = b""
        for _ in range(300_000):
            value = hashlib.sha256(value).digest()
        print(value.hex(), flush=True)
        """
    )
    ready(process)
    assert process.stdin is not None
    process.stdin.write("compute\n")
    process.stdin.flush()
    while not has_printed(process):
        assert len(native.call_inside(process.pid, [(GETPID,)] * 5)) == 5
    assert ready(process) == ready(expected)


def has_printed(process: "subprocess.Popen[str]") -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0)[0])


def test_signals_arrive_once_and_handlers_stay(start: Start) -> None:
    process = start(
        """
        import os, signal
        def handle(*_): os.write(1, b"handled\\n")
        signal.signal(signal.SIGUSR1, handle)
        signal.signal(signal.SIGTRAP, signal.SIG_IGN)
        print("ready", flush=True)
        while input() != "end": pass
        print(signal.getsignal(signal.SIGTRAP) == signal.SIG_IGN, flush=True)
        """
    )
    ready(process)
    for _ in range(50):
        os.kill(process.pid, signal.SIGUSR1)
        native.call_inside(process.pid, [(GETPID,)] * 2)
        # Signals that arrive before the last one was handled are one, without gpusnap too.
        assert ready(process) == "handled"
    assert process.communicate("end\n")[0] == "True\n"
    assert process.returncode == 0


def test_a_stopped_process_stays_stopped(start: Start) -> None:
    process = start("print('ready', flush=True); input()")
    ready(process)
    os.kill(process.pid, signal.SIGSTOP)
    assert settled(process.pid, "T")
    assert native.call_inside(process.pid, [(GETPID,)] * 3) == [process.pid] * 3
    assert settled(process.pid, "T")
    os.kill(process.pid, signal.SIGCONT)
    process.communicate("go on\n")
    assert process.returncode == 0


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(TargetError, match="it has ended"):
        native.call_inside(process.pid, [(GETPID,)])
    process.wait()
    with pytest.raises(TargetError, match="it has ended"):
        native.call_inside(process.pid, [(GETPID,)])


def test_an_address_of_something_else_is_not_jumped_to(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start("print('ready', flush=True); input()")
    ready(process)
    found = injection._address_of_syscall(process.pid)
    assert found is not None
    monkeypatch.setattr(injection, "_address_of_syscall", lambda _pid: found + 1)
    with pytest.raises(TargetError, match="temporarily unavailable"):
        native.call_inside(process.pid, [(GETPID,)])
    process.communicate("go on\n")
    assert process.returncode == 0


def test_a_caller_that_ignores_the_end_of_children(start: Start) -> None:
    process = start("print('ready', flush=True); input()")
    ready(process)
    caller = start(
        f"""
        import signal
        from gpusnap.native import call_inside
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print(call_inside({process.pid}, [({GETPID},)]), flush=True)
        """
    )
    assert ready(caller) == f"[{process.pid}]"


def test_one_that_another_traces_is_left_alone(start: Start) -> None:
    process = start("print('ready', flush=True); input()")
    ready(process)
    tracer = start(
        f"""
        import ctypes
        assert ctypes.CDLL(None).ptrace(0x4206, {process.pid}, 0, 0) == 0
        print("ready", flush=True)
        input()
        """
    )
    assert ready(tracer) == "ready"
    with pytest.raises(TargetError, match="not permitted"):
        native.call_inside(process.pid, [(GETPID,)])
    tracer.communicate("end\n")
    process.communicate("go on\n")
    assert process.returncode == 0


def test_one_that_does_not_stop_is_let_go(tmp_path: Path) -> None:
    # A thread that waits for its child in vfork cannot be stopped.
    source, program = tmp_path / "waits.c", tmp_path / "waits"
    source.write_text(
        "#include <unistd.h>\n"
        "int main(void) { char c; if (vfork() == 0) { read(0, &c, 1); _exit(0); } return 7; }\n"
    )
    subprocess.run(["gcc", "-o", program, source], check=True)
    process = subprocess.Popen([program], stdin=subprocess.PIPE)
    assert settled(process.pid, "D")
    with pytest.raises(TargetError, match="timed out"):
        native.call_inside(process.pid, [(GETPID,)], timeout_ms=100)
    process.communicate(b"x")
    assert process.returncode == 7


def test_a_caller_that_is_killed_leaves_no_trace(start: Start) -> None:
    process = start(
        """
        import hashlib, signal
        going = True
        def end(*_): global going; going = False
        signal.signal(signal.SIGUSR1, end)
        expected = hashlib.sha256(bytes(1000)).digest()
        print("ready", flush=True)
        while going: assert hashlib.sha256(bytes(1000)).digest() == expected
        print("right to the end", flush=True)
        """
    )
    ready(process)
    chance = random.Random(1)
    calls = f"call_inside({process.pid}, [({GETPID},)] * 20)"
    caller = (
        f"from gpusnap.native import call_inside\nprint('calling', flush=True)\nwhile True: {calls}"
    )
    for _ in range(10):
        killed = start(caller)
        assert ready(killed) == "calling"
        time.sleep(chance.uniform(0, 0.03))
        killed.kill()
        killed.wait()
    process.send_signal(signal.SIGUSR1)
    assert ready(process) == "right to the end"
