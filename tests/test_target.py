import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gpusnap.errors import NotFoundError, TargetError
from gpusnap.release import now_ticks
from gpusnap.target import (
    Mapping,
    alive,
    find_target,
    gone,
    identity,
    is_zombie,
    lives,
    myself,
    read_maps,
    read_process,
    same,
)
from gpusnap.types import ProcessId
from tests.endings import headless, reaped_at_a_look
from tests.time_namespaces import OFFSETS, run_in, skip_without, start_in

GONE = 2**22 + 1
"""Above the kernel's largest PID."""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        while not read_process(process.pid).command:  # between fork and exec
            time.sleep(0.001)
        yield process
        process.kill()


@pytest.fixture
def zombie() -> Iterator[int]:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    while not is_zombie(pid):
        time.sleep(0.001)
    yield pid
    os.waitpid(pid, 0)


def test_identity_tells_a_process_from_the_next_of_its_pid(
    child: subprocess.Popen[bytes],
) -> None:
    first = identity(child.pid)
    assert first is not None
    assert first == identity(child.pid)
    assert alive(first)
    child.kill()
    child.wait()
    assert not alive(first)
    assert identity(child.pid) is None


@pytest.fixture
def time_namespaces() -> None:
    skip_without()


def test_one_tick_is_the_same_start() -> None:
    process = ProcessId(7, 100)
    assert same(process, ProcessId(7, 99))
    assert same(process, ProcessId(7, 101))
    assert not same(process, ProcessId(7, 98))
    assert not same(process, ProcessId(7, 102))
    assert not same(process, ProcessId(8, 100))


def test_a_start_two_ticks_away_is_another_process(child: subprocess.Popen[bytes]) -> None:
    found = identity(child.pid)
    assert found is not None
    for ticks in (-2, 2):
        assert not alive(ProcessId(found.pid, found.start_ticks + ticks))


def test_only_a_process_that_has_not_ended_lives(zombie: int) -> None:
    assert list(map(lives, (os.getpid(), zombie, GONE))) == [True, False, False]


def test_a_zombie_that_is_reaped_once_it_was_looked_at_does_not_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid = reaped_at_a_look(monkeypatch)
    assert not lives(pid)
    assert identity(pid) is None


def test_a_process_is_gone_once_all_its_threads_are(zombie: int) -> None:
    with headless() as process:
        assert is_zombie(process.pid)
        assert not gone(process)
    assert gone(process)
    ended = identity(zombie)
    assert ended is not None
    assert gone(ended)
    assert gone(ProcessId(os.getpid(), myself().start_ticks - 100)), "another one has its PID now"
    assert gone(ProcessId(GONE, 1))


def test_a_zombie_is_not_alive(zombie: int) -> None:
    found = identity(zombie)
    assert found is not None
    assert not alive(found)


SEEN = """
import sys
from gpusnap.target import *
from gpusnap.types import ProcessId
for argument in sys.argv[1:]:
    pid, ticks = map(int, argument.split("-"))
    found = identity(pid)
    assert read_process(pid).id == found
    print(found.start_ticks, alive(ProcessId(pid, ticks)))
"""


@pytest.mark.usefixtures("time_namespaces")
@pytest.mark.parametrize("offset", OFFSETS)
def test_a_time_namespace_sees_the_same_identities(
    offset: str, child: subprocess.Popen[bytes]
) -> None:
    outside = [identity(pid) for pid in (1, os.getpid(), child.pid)]
    arguments = [f"{each.pid}-{each.start_ticks}" for each in outside if each is not None]
    assert len(arguments) == 3
    lines = run_in(offset, SEEN, *arguments).splitlines()
    for line, process in zip(lines, outside, strict=True):
        ticks, lives = line.split()
        assert process is not None
        assert process.start_ticks - int(ticks) in {0, 1}
        assert lives == "True"


WITHIN = """
import subprocess, sys
from gpusnap.release import now_ticks
from gpusnap.target import identity
early = now_ticks()
with subprocess.Popen(["sleep", "60"]) as child:
    late = now_ticks()
    print(identity(child.pid).start_ticks, early, late)
    child.kill()
"""


@pytest.mark.usefixtures("time_namespaces")
@pytest.mark.parametrize("offset", OFFSETS)
def test_the_present_in_a_time_namespace_is_the_hosts(offset: str) -> None:
    before = now_ticks()
    start, early, late = map(int, run_in(offset, WITHIN).split())
    assert before <= early <= late <= now_ticks()
    assert early - 1 <= start <= late


STARTED = """
import sys
from gpusnap.target import myself
own = myself()
print(own.pid, own.start_ticks, flush=True)
"""


@pytest.mark.usefixtures("time_namespaces")
@pytest.mark.parametrize("offset", OFFSETS)
def test_what_runs_in_a_time_namespace_is_found_alive_outside(offset: str) -> None:
    with start_in(offset, f"{STARTED}sys.stdin.read()") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        inside = ProcessId(*map(int, process.stdout.readline().split()))
        outside = identity(inside.pid)
        assert outside is not None
        assert same(inside, outside)
        assert alive(inside)
        process.stdin.close()
    assert not alive(inside)


@pytest.mark.usefixtures("time_namespaces")
def test_a_tree_older_than_the_time_namespace() -> None:
    script = "import subprocess, time; time.sleep(1); subprocess.Popen(['sleep', '60']).wait()"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as process:
        while len(pids := find_target(process.pid).pids) < 2:
            time.sleep(0.01)
        root, child = (identity(pid) for pid in pids)
        assert root is not None
        assert child is not None
        # The clock's zero lies between the two starts.
        middle = (root.start_ticks + child.start_ticks) // 2
        seconds, ticks = divmod(-middle, 100)
        offset = f"{seconds} {ticks * 10_000_000}"
        code = "from gpusnap.target import find_target; print(*find_target(int(sys.argv[1])).pids)"
        found = run_in(offset, f"import sys; {code}", process.pid)
        os.killpg(process.pid, 9)
    assert tuple(map(int, found.split())) == pids


def test_a_process(child: subprocess.Popen[bytes]) -> None:
    process = read_process(child.pid)
    assert process.name == "sleep"
    assert process.command == ("sleep", "60")
    assert process.parent_pid == os.getpid()
    assert process.session_id == child.pid
    assert process.threads == 1
    assert process.user_id == os.geteuid()
    assert process.executable == os.path.realpath(f"/proc/{child.pid}/exe")
    assert process.namespaces["pid"].startswith("pid:[")
    # Of one that has just started, kernels before 6.17 may not have counted any memory yet.
    assert read_process(os.getpid()).resident > 0


def test_a_name_with_brackets_and_blanks(tmp_path_factory: pytest.TempPathFactory) -> None:
    program = tmp_path_factory.mktemp("bin") / "a) b (c"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        while not read_process(process.pid).command:  # between fork and exec
            time.sleep(0.001)
        assert read_process(process.pid).name == "a) b (c"
        assert read_process(process.pid).parent_pid == os.getpid()
        process.kill()


def test_a_tree_root_first() -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as process:
        sleeping = ("sleep", "60")  # before exec, a child has its parent's command
        while sleeping not in {each.command for each in find_target(process.pid).processes}:
            time.sleep(0.01)
        target = find_target(process.pid)
        assert target.root.pid == process.pid
        assert target.processes[1].name == "sleep"
        os.killpg(process.pid, 9)


def test_a_pid_that_does_not_exist() -> None:
    with pytest.raises(NotFoundError, match=f"No process has PID {GONE}"):
        find_target(GONE)


@pytest.mark.parametrize("pid", [0, -1])
def test_no_pid_at_all(pid: int) -> None:
    with pytest.raises(NotFoundError, match="is not a PID"):
        find_target(pid)


def test_a_zombie(zombie: int) -> None:
    with pytest.raises(TargetError, match="is a zombie") as caught:
        find_target(zombie)
    assert caught.value.exit_code == 16


def test_gpusnap_itself() -> None:
    with pytest.raises(TargetError, match="is gpusnap itself"):
        find_target(os.getpid())


def test_an_ancestor() -> None:
    with pytest.raises(TargetError, match="is an ancestor of gpusnap"):
        find_target(os.getppid())


def test_a_thread() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    words = f"{thread.native_id} is a thread of process {os.getpid()}"
    with pytest.raises(TargetError, match=words) as caught:
        find_target(thread.native_id or 0)
    end.set()
    thread.join()
    assert caught.value.cure == f"Give {os.getpid()}"


def test_a_kernel_thread() -> None:
    if identity(2) is None or read_process(2).name != "kthreadd":
        pytest.skip("No kernel threads are visible in this PID namespace")
    with pytest.raises(TargetError, match="kernel thread"):
        find_target(2)


def test_maps() -> None:
    maps = read_maps(os.getpid())
    assert list(maps) == sorted(maps, key=lambda mapping: mapping.start)
    stack = next(mapping for mapping in maps if mapping.path == "[stack]")
    assert stack.length > 0
    assert not stack.private_anonymous
    program = next(mapping for mapping in maps if mapping.path.endswith(".so.6"))
    assert program.inode > 0
    assert not program.private_anonymous


def test_a_new_private_mapping_is_seen() -> None:
    import mmap

    before = set(read_maps(os.getpid()))
    with mmap.mmap(-1, 1 << 22, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[0] = 1
        new = set(read_maps(os.getpid())) - before
        assert any(mapping.private_anonymous and mapping.length >= 1 << 22 for mapping in new)


def test_maps_of_nobody() -> None:
    with pytest.raises(NotFoundError):
        read_maps(GONE)


def test_a_shared_mapping_is_not_private() -> None:
    assert not Mapping(0, 4096, "rw-s", 0, 0, "").private_anonymous
    assert not Mapping(0, 4096, "rw-p", 0, 7, "/a b").private_anonymous
    assert Mapping(0, 4096, "---p", 0, 0, "").private_anonymous
