import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gpusnap.errors import NotFoundError, TargetError
from gpusnap.target import (
    Mapping,
    alive,
    find_target,
    identity,
    is_zombie,
    read_maps,
    read_process,
)

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


def test_a_process(child: subprocess.Popen[bytes]) -> None:
    process = read_process(child.pid)
    assert process.name == "sleep"
    assert process.command == ("sleep", "60")
    assert process.parent_pid == os.getpid()
    assert process.session_id == child.pid
    assert process.threads == 1
    assert process.user_id == os.geteuid()
    assert process.resident > 0
    assert process.executable == os.path.realpath(f"/proc/{child.pid}/exe")
    assert process.namespaces["pid"].startswith("pid:[")


def test_a_name_with_brackets_and_blanks(tmp_path_factory: pytest.TempPathFactory) -> None:
    program = tmp_path_factory.mktemp("bin") / "a) b (c"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        assert read_process(process.pid).name == "a) b (c"
        assert read_process(process.pid).parent_pid == os.getpid()
        process.kill()


def test_a_tree_root_first() -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as process:
        while len(find_target(process.pid).processes) < 2:
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
