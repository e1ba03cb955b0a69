"""Every hard case by a real process: it is named, and the real CRIU agrees."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.criu import Criu
from gpusnap.findings import Wishes, inspect_tree
from gpusnap.types import Claim, ProcessId, Severity, Target
from tests.findings.conftest import Start, dump, errors, found, inspect

pytestmark = pytest.mark.usefixtures("root")

OLD = "only a CRIU before 4.2 fails on it"

CHILD = (
    "reads, writes = os.pipe()\n"
    "if os.fork() == 0:\n    {}\n    os.write(writes, b'x')\n"
    "    os.close(reads); os.close(writes)\n    time.sleep(1000)\n"
    "os.close(writes)\n"
    "if not os.read(reads, 1): sys.exit(1)\n"
    "os.close(reads)"
)
REFUSED = {
    "io-uring": [("io_uring", "ring = call(425, 8, ctypes.create_string_buffer(240))")],
    "descriptor-kind": [
        (
            "perf_event",
            "call(298, bytes([1, 0, 0, 0, 128]).ljust(128, bytes(1)), 0, -1, -1, 0)",
        ),
        ("userfaultfd", "call(323, 1)"),
        (
            "bpf-map",
            "import struct; b = struct.pack('IIIII100x', 2, 4, 4, 4, 0); call(321, 0, b, 120)",
        ),
        ("landlock-ruleset", "call(444, (1).to_bytes(8, 'little'), 8, 0)"),
    ],
    "device-file": [
        ("/dev/fuse", "os.open('/dev/fuse', os.O_RDWR)"),
        ("/dev/net/tun", "os.open('/dev/net/tun', os.O_RDWR)"),
        ("/dev/loop-control", "os.open('/dev/loop-control', os.O_RDWR)"),
        ("/dev/loop0", "os.open('/dev/loop0', os.O_RDONLY)"),
        ("/dev/ttyS0", "os.open('/dev/ttyS0', os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)"),
    ],
    "watch-proc": [
        ("/proc", "w = call(294, 0); libc.inotify_add_watch(w, b'/proc/self/status', 2)"),
    ],
    "socket-protocol": [
        ("VSOCK", "s = socket.socket(40, socket.SOCK_STREAM)"),
        ("MPTCP", "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)"),
    ],
    "sysv-shm": [
        (
            "System V",
            "key = libc.shmget(0, 4096, 0o1600); libc.shmat(key, None, 0); libc.shmctl(key, 0, 0)",
        ),
    ],
    "secret-memory": [
        ("secret", "f = call(447, 0); os.ftruncate(f, 4096); m = mmap.mmap(f, 4096); m[0] = 1"),
    ],
    "namespace-nested": [
        ("uts", CHILD.format("libc.unshare(0x04000000)")),
        ("ipc", CHILD.format("libc.unshare(0x08000000)")),
    ],
}
CASES = [(code, words, setup) for code, cases in REFUSED.items() for words, setup in cases]


@pytest.mark.parametrize(("code", "words", "setup"), CASES, ids=[f"{c}-{w}" for c, w, _ in CASES])
def test_what_criu_refuses(criu: Criu, start: Start, code: str, words: str, setup: str) -> None:
    program = start(setup)
    finding = found(program, criu)[code]
    assert finding.severity is Severity.ERROR
    assert words in finding.text
    assert finding.pid in program.target.pids
    assert f"Process {finding.pid} (" in finding.text
    assert finding.cure
    assert dump(program, criu) is not None


FINE = {
    "descriptors": "a = os.memfd_create('x'); b = os.eventfd(0); import select\n"
    "e = select.epoll(); e.register(b); call(283, 1, 0)\n"
    "call(289, -1, ctypes.create_string_buffer(8), 8, 0); p = os.pidfd_open(os.getpid())\n"
    "w = call(294, 0); libc.inotify_add_watch(w, b'/tmp', 0x100); call(300, 0, 0)",
    "devices": "[os.open(f'/dev/{n}', os.O_RDWR) for n in ('null', 'zero', 'full')]\n"
    "os.open('/dev/urandom', 0); os.open('/dev/tty5', os.O_RDWR | os.O_NOCTTY)",
    "sockets": "a, b = socket.socketpair(); s = socket.socket(1); s.bind(folder + '/s')\n"
    "s.listen(); n = socket.socket(16, 3, 0); n.bind((0, 0)); r, w = os.pipe()",
    "terminals": "main, other = os.openpty()",
    "memory": "m = mmap.mmap(-1, 1 << 20); m[0] = 1; os.mkdir(folder + '/d')\n"
    "os.chdir(folder + '/d'); os.rmdir(folder + '/d')",
}


@pytest.mark.parametrize("setup", FINE.values(), ids=FINE)
def test_what_criu_saves(criu: Criu, start: Start, setup: str) -> None:
    program = start(setup)
    assert found(program, criu) == {}
    assert inspect(program, criu).needs.choices == ()
    assert dump(program, criu) is None


def test_a_pidfd_of_a_process_outside(criu: Criu, start: Start) -> None:
    program = start(f"p = os.pidfd_open({os.getpid()})")
    assert f"holds process {os.getpid()} by" in found(program, criu)["pidfd-outside"].text
    assert dump(program, criu) is not None


def test_network_sockets_and_an_old_criu(criu: Criu, start: Start) -> None:
    program = start("s = socket.create_server(('127.0.0.1', 0))")
    named = "socket-old-criu" in errors(program, criu)
    assert named == (dump(program, criu) is not None)
    if named:
        assert "GPUSNAP_CRIU" in str(found(program, criu)["socket-old-criu"].cure)
    assert "socket-old-criu" not in found(program, None)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_an_established_connection(criu: Criu, start: Start, server: socket.socket) -> None:
    port = server.getsockname()[1]
    program = start(f"s = [socket.create_connection(('127.0.0.1', {port})) for _ in '12']")
    finding = found(program, criu)["tcp-established"]
    assert finding.severity is Severity.ERROR
    assert f"has a TCP connection to 127.0.0.1:{port} and 1 more" in finding.text
    assert "--tcp-established" in str(finding.cure)
    assert "established TCP" in str(dump(program, criu))
    assert "tcp-established" not in found(program, criu, tcp_established=True)


BETWEEN = """
l = socket.create_server(('{host}', 0), family={family}, dualstack_ipv6={family} == 10)
if os.fork() == 0:
    s = socket.create_connection(('127.0.0.1', l.getsockname()[1]))
    l.close()
    time.sleep(600)
    os._exit(0)
c = l.accept()
"""


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", 2), ("::", 10)], ids=["ipv4", "ipv6"])
def test_a_connection_within_the_tree(criu: Criu, start: Start, host: str, family: int) -> None:
    """An end of IPv6 may have one of IPv4 at the other."""
    program = start("import time\n" + BETWEEN.format(host=host, family=family))
    assert "tcp-established" not in found(program, criu)
    needs = inspect(program, criu).needs
    assert needs.options.tcp_established
    (choice,) = (each for each in needs.choices if each.option == "--tcp-established")
    assert f"process {program.pid} " in choice.reason
    if "socket-old-criu" not in found(program, criu):
        assert dump(program, criu) is None


def test_a_connection_over_ipv6(criu: Criu, start: Start) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("No IPv6 here")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        program = start(f"s = socket.create_connection(('::1', {port}))")
        assert f"to [::1]:{port}" in found(program, criu)["tcp-established"].text


def test_a_connection_not_accepted_yet(criu: Criu, start: Start) -> None:
    program = start(
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "open(folder + '/port', 'w').write(str(s.getsockname()[1]))"
    )
    port = int((program.folder / "port").read_text())
    with socket.create_connection(("127.0.0.1", port)):
        assert found(program, criu)["tcp-in-flight"].severity is Severity.ERROR
        assert dump(program, criu) is not None
    assert errors(program, None) <= {"tcp-in-flight"}


def test_a_stream_to_a_process_outside(criu: Criu, start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        program = start(f"s = socket.socket(1); s.connect({str(tmp_path / 's')!r})")
        with server.accept()[0]:
            finding = found(program, criu)["unix-socket-outside"]
            assert finding.severity is Severity.ERROR
            assert f"at {tmp_path / 's'} of {os.getpid()} (" in finding.text
            assert dump(program, criu) is not None


def test_a_pipe_to_a_process_outside(criu: Criu, start: Start) -> None:
    reads, writes = os.pipe()
    program = start(stdout=writes)
    os.close(writes)
    finding = found(program, criu)["pipe-outside"]
    assert finding.severity is Severity.WARNING
    assert f"writes to process {os.getpid()} (" in finding.text
    os.close(reads)
    assert "pipe-outside" not in found(program, criu)
    assert dump(program, criu) is None


def test_a_terminal(criu: Criu, start: Start) -> None:
    main, other = os.openpty()
    try:
        program = start(stdin=other)
        finding = found(program, criu)["terminal"]
        assert finding.severity is Severity.ERROR
        assert f"the terminal {os.ttyname(other)} by descriptor 0" in finding.text
        assert dump(program, criu) is not None
        job = start(stdin=other, start_new_session=False)
        assert found(job, criu)["terminal"].severity is Severity.WARNING
        assert dump(job, criu) is None
    finally:
        os.close(main)
        os.close(other)


def test_guard_pages(criu: Criu, start: Start) -> None:
    program = start(
        "m = mmap.mmap(-1, 1 << 19, flags=0x22); m[0] = 1\n"
        "a = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
        "if libc.madvise(ctypes.c_void_p(a + 8192), ctypes.c_size_t(8192), 102):\n"
        "    done('no MADV_GUARD_INSTALL'); sys.exit(1)"
    )
    named = "guard-pages" in errors(program, criu)
    assert named == (dump(program, criu) is not None)


def test_other_namespaces(criu: Criu, start: Start) -> None:
    own = "if libc.unshare({}): done('no namespaces'); sys.exit(1)"
    light = start(own.format("0x04000000 | 0x40000000"))
    finding = found(light, criu)["namespace-other"]
    assert finding.severity is Severity.INFO
    assert "(net, uts)" in finding.text
    chosen = {each.option: each.reason for each in inspect(light, criu).needs.choices}
    assert chosen == {"--network-lock": f"process {light.pid} has a network namespace of its own"}
    assert dump(light, criu) is None
    heavy = start(own.format("0x20000"))
    assert found(heavy, criu)["namespace-other"].severity is Severity.WARNING


FILTER = (
    "import struct; libc.prctl(38, 1, 0, 0, 0)\n"
    "f = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n"
    "p = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(f)))\n"
    "if libc.prctl(22, 2, p): done('no seccomp'); sys.exit(1)"
)


def test_a_seccomp_filter(criu: Criu, start: Start) -> None:
    program = start(FILTER)
    assert found(program, criu)["seccomp"].severity is Severity.INFO
    assert dump(program, criu) is None


def test_a_seccomp_filter_seen_from_a_sandbox(start: Start) -> None:
    program = start(FILTER)
    script = (
        "import ctypes, sys\nfrom gpusnap.findings import Wishes, inspect_tree\n"
        "from gpusnap.target import find_target\nlibc = ctypes.CDLL(None)\n"
        "def done(word): sys.exit(word)\n"
        f"{FILTER}\n"
        f"for each in inspect_tree(find_target({program.pid}), None, None, Wishes()).findings:\n"
        "    print(each.code, each.severity)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "sandbox error" in ran.stdout.splitlines()


def test_a_debugger(criu: Criu, start: Start) -> None:
    program = start()
    script = f"import ctypes, sys; ctypes.CDLL(None).ptrace(0x4206, {program.pid}, 0, 0)"
    script += "; print('', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as tracer:
        assert tracer.stdout is not None
        tracer.stdout.readline()
        finding = found(program, criu)["target-traced"]
        assert f"process {tracer.pid}" in finding.text
        tracer.communicate()
    assert "target-traced" not in found(program, criu)


def test_a_process_that_ends_meanwhile(start: Start) -> None:
    program = start()
    target = program.target
    program.end()
    inspected = inspect_tree(target, None, None, Wishes())
    assert [each.code for each in inspected.findings] == ["target-changing"]


def test_an_io_uring_tells_the_library(criu: Criu, start: Start, tmp_path: Path) -> None:
    library = tmp_path / "liburing.so.2"
    library.write_bytes(bytes(4096))
    program = start(
        f"{REFUSED['io-uring'][0][1]}\nf = open({str(library)!r}, 'rb')\n"
        "m = mmap.mmap(f.fileno(), 4096, prot=mmap.PROT_READ)"
    )
    assert "probably through liburing.so.2," in found(program, criu)["io-uring"].text


def test_a_device_without_a_backend(start: Start, tmp_path: Path) -> None:
    """A device's file by its name alone; a file of that name stands for it."""
    device = Path(f"/dev/nvidia-test-{os.getpid()}")
    program = start(
        f"name = {str(device)!r}\nd = os.open(name, os.O_RDWR | os.O_CREAT)\n"
        "if os.fork() == 0: time.sleep(1000)"
    )
    try:
        finding = found(program, None)["device-unclaimed"]
        assert f"has {device} open, but no usable backend" in finding.text
        claim = Claim(pids=(program.pid,), reason="test", device_files=("/dev/nvidia",))
        assert inspect_tree(program.target, claim, None, Wishes()).findings == ()
    finally:
        device.unlink()


def test_a_driver_may_have_files_of_its_own_kind(start: Start) -> None:
    landlock, event = (REFUSED["descriptor-kind"][at][1] for at in (3, 0))
    for setup, codes in ((landlock, []), (event, ["descriptor-kind"])):
        program = start(setup)
        claim = Claim(pids=(program.pid,), reason="test")
        inspected = inspect_tree(program.target, claim, None, Wishes())
        assert [each.code for each in inspected.findings] == codes


def test_a_thousand_descriptors_are_read_at_once(start: Start) -> None:
    """Only that the work is linear is asserted: one process of 1,000 open files of all kinds."""
    program = start(
        "d = [os.dup(0) for _ in range(400)]\nf = [os.open('/etc/passwd', 0) for _ in range(300)]\n"
        "p = [socket.socketpair() for _ in range(100)]; q = [os.pipe() for _ in range(50)]"
    )
    assert found(program, None) == {}


def test_the_tree_is_what_is_looked_at(start: Start) -> None:
    program = start(CHILD.format("call(425, 8, ctypes.create_string_buffer(240))"))
    target = program.target
    finding = found(program, None)["io-uring"]
    assert finding.pid == target.processes[1].pid
    alone = Target(processes=target.processes[:1])
    assert inspect_tree(alone, None, None, Wishes()).findings == ()
    assert isinstance(target.root.id, ProcessId)
