"""What CRIU needs is chosen from what the tree holds, and carried in the snapshot."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import gpusnap
from gpusnap.criu import Criu
from gpusnap.findings import Choice, Wishes
from gpusnap.plan import CheckpointOptions
from gpusnap.repository import SavedLink, SavedOptions
from gpusnap.types import Severity
from tests.findings.conftest import Start, dump, errors, found, inspect
from tests.findings.programs import Program

pytestmark = pytest.mark.usefixtures("root")

DELETED = (
    "f = os.open(folder + '/f', os.O_RDWR | os.O_CREAT); os.write(f, bytes([7]) * 3000000)\n"
    "os.unlink(folder + '/f')"
)


def chosen(program: Program, **wishes: bool) -> dict[str, str]:
    return {each.option: each.reason for each in inspect(program, None, **wishes).needs.choices}


@pytest.mark.parametrize(
    "setup",
    [
        "import fcntl; fcntl.flock(f, fcntl.LOCK_EX)",
        "fcntl.lockf(f, fcntl.LOCK_EX, 1)",
        "import struct; fcntl.fcntl(f, 37, struct.pack('hhqqi4x', 1, 0, 0, 0, 0))",
    ],
    ids=["flock", "posix", "open-file"],
)
def test_file_locks(criu: Criu, start: Start, setup: str) -> None:
    program = start(f"f = os.open(folder + '/f', os.O_RDWR | os.O_CREAT)\n{setup}")
    assert chosen(program) == {"--file-locks": f"process {program.pid} holds 1 lock"}
    assert dump(program, criu) is None
    assert chosen(program, file_locks=True) == {}
    assert "file-locks" in errors(program, criu, file_locks=False)
    assert "file locks" in str(dump(program, criu, file_locks=False))


def test_a_large_deleted_file(criu: Criu, start: Start) -> None:
    program = start(DELETED)
    needs = inspect(program, None).needs
    size = needs.deleted[0].allocated
    assert needs.deleted_bytes == size >= 3_000_000
    assert needs.choices[0].option == f"--ghost-limit={2 * size}"
    assert f"uses {program.folder}/f, {size} bytes" in needs.choices[0].reason
    assert dump(program, criu) is None


def test_a_deleted_file_that_is_only_mapped(criu: Criu, start: Start) -> None:
    program = start(f"{DELETED}\nm = mmap.mmap(f, 3000000); os.close(f)")
    assert [each.name for each in inspect(program, None).needs.deleted] == [f"{program.folder}/f"]
    assert dump(program, criu) is None


def test_memory_without_a_name_is_no_deleted_file(start: Start) -> None:
    program = start(
        "a = mmap.mmap(-1, 1 << 20); f = os.memfd_create('x'); os.ftruncate(f, 4096)\n"
        "b = mmap.mmap(f, 4096)"
    )
    assert inspect(program, None).needs.deleted == ()


def test_a_file_with_another_name(criu: Criu, start: Start) -> None:
    program = start(
        "f = os.open(folder + '/f', os.O_RDWR | os.O_CREAT)\n"
        "os.link(folder + '/f', folder + '/g'); os.unlink(folder + '/f')"
    )
    assert list(chosen(program)) == ["--link-remap"]
    assert dump(program, criu) is None
    assert "link-remap" in errors(program, criu, link_remap=False)
    assert "lives on under another name" in str(dump(program, criu, link_remap=False))


def test_datagrams_to_a_process_outside(criu: Criu, start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        program = start(f"s = socket.socket(1, 2); s.connect({str(tmp_path / 'log')!r})")
        assert chosen(program) == {
            "--ext-unix-sk": f"process {program.pid} sends to {tmp_path / 'log'}"
        }
        assert errors(program, criu) == set()
        assert dump(program, criu) is None
        refused = found(program, criu, external_unix_sockets=False)["unix-socket-outside"]
        assert refused.severity is Severity.ERROR
        assert dump(program, criu, external_unix_sockets=False) is not None


def test_a_job_of_a_shell(start: Start) -> None:
    program = start(start_new_session=False)
    reason = f"process {program.pid} belongs to the session of process {os.getsid(0)}"
    assert chosen(program) == {"--shell-job": reason}


def test_the_plan_says_what_was_chosen(start: Start, tmp_path: Path) -> None:
    program = start("import fcntl; f = open(folder + '/f', 'w'); fcntl.flock(f, fcntl.LOCK_EX)")
    plan = gpusnap.plan_checkpoint(program.pid, repository=tmp_path / "repository")
    assert plan.chosen == (Choice("--file-locks", f"process {program.pid} holds 1 lock"),)
    assert "--file-locks" in plan.criu_command
    options = CheckpointOptions(file_locks=False)
    refused = gpusnap.plan_checkpoint(program.pid, repository=tmp_path / "r", options=options)
    assert "--file-locks" not in refused.criu_command
    assert options.wishes == Wishes(file_locks=False)


SHARED = """
import mmap, os, sys, time
libc.sem_open.restype = ctypes.c_void_p
def semaphore(name, value):
    made = libc.sem_open(name, os.O_CREAT | os.O_RDWR, 0o600, value)
    return ctypes.c_void_p(made)
named, gone = semaphore({name!r}, 5), semaphore({name!r} + b"-gone", 7)
libc.sem_unlink({name!r} + b"-gone")
path = "/dev/shm/" + {name!r}.decode()[1:] + "-memory"
f = os.open(path, os.O_RDWR | os.O_CREAT, 0o600); os.ftruncate(f, 4 << 20)
memory = mmap.mmap(f, 4 << 20); os.close(f); os.unlink(path)
memory[:] = bytes([9]) * len(memory)
out = os.open(folder + "/out", os.O_RDWR | os.O_CREAT)
value = ctypes.c_int()
def read(which):
    libc.sem_getvalue(which, ctypes.byref(value))
    return value.value
if os.fork() == 0:
    while True:
        memory[0] = (memory[0] + 1) % 200
        time.sleep(0.005)
def report():
    sums = memory[1], memory[len(memory) - 1]
    os.pwrite(out, b"%04d %04d %04d %04d %04d" % (read(named), read(gone), memory[0], *sums), 0)
report()
done("ready")
while True:
    report()
    time.sleep(0.005)
"""


class Shared:
    """A tree with a semaphore that has a name, one that has none, and deleted shared memory."""

    def __init__(self, start: Start) -> None:
        self.name = f"/gpusnap-test-{os.getpid()}"
        self.program = start(SHARED.format(name=self.name.encode()))
        self.file = Path("/dev/shm/sem." + self.name[1:])

    def values(self) -> list[int]:
        """Of the semaphores, and of the memory: what the child counts, and two bytes."""
        return list(map(int, (self.program.folder / "out").read_text().split()))

    def works(self) -> bool:
        """Whether the parent still sees what the child counts."""
        first, deadline = self.values(), time.monotonic() + 60
        while (now := self.values())[2] == first[2]:
            assert time.monotonic() < deadline, "The child is not seen counting"
            time.sleep(0.01)
        return now[:2] == [5, 7] and now[3:] == [9, 9]

    def end(self) -> None:
        for pid in reversed(self.program.target.pids):
            os.kill(pid, signal.SIGKILL)
        self.program.gone()


@pytest.fixture
def shared(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "state"))
    tree = Shared(start)
    yield tree
    tree.file.unlink(missing_ok=True)


def leftovers() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith("link_remap.")]


@pytest.mark.parametrize("leave_running", [False, True], ids=["kill", "leave-running"])
def test_shared_memory_comes_back_twice_and_elsewhere(
    shared: Shared, tmp_path: Path, leave_running: bool
) -> None:
    assert shared.works()
    snapshot = gpusnap.create_checkpoint(
        shared.program.pid, tmp_path / "repository" / "one", leave_running=leave_running
    )
    options = snapshot.manifest.options
    assert options.link_remap
    assert options.ghost_limit is not None
    assert options.ghost_limit >= 4 << 20
    (link,) = snapshot.manifest.links
    assert link.names == (str(shared.file),)
    if leave_running:
        assert shared.works()
        shared.end()
    shared.program.gone()
    _restores(shared, snapshot.path, lambda: None)
    saved = shared.file.read_bytes()
    shared.file.write_bytes(bytes(len(saved)))
    with pytest.raises(gpusnap.errors.IncompatibleError, match="no longer as it was") as refusal:
        gpusnap.restore_checkpoint(snapshot.path)
    assert str(refusal.value.cure).endswith(f"rm {shared.file}")
    # As on another machine, or after a boot
    _restores(shared, snapshot.path, shared.file.unlink)
    assert shared.file.stat().st_nlink == 1


def _restores(shared: Shared, snapshot: Path, before: Callable[[], None]) -> None:
    before()
    gpusnap.restore_checkpoint(snapshot)
    assert shared.works()
    assert leftovers() == []
    shared.end()


def test_a_restore_that_fails_leaves_no_names(shared: Shared, tmp_path: Path) -> None:
    snapshot = gpusnap.create_checkpoint(
        shared.program.pid, tmp_path / "repository" / "one", leave_running=False
    )
    shared.program.gone()
    shared.file.unlink()
    for name in leftovers():
        Path("/dev/shm", name).unlink()
    (shared.program.folder / "out").unlink()
    with pytest.raises(gpusnap.errors.CriuError, match="out is gone"):
        gpusnap.restore_checkpoint(snapshot.path)
    assert leftovers() == []
    assert not shared.file.exists()


def test_a_tree_that_needs_nothing(start: Start) -> None:
    assert inspect(start(), None).needs.options == SavedOptions()


GOOD = {
    "file": "gpusnap-link-0",
    "made": ["/dev/shm/link_remap.7"],
    "names": ["/dev/shm/sem.a"],
    "mode": 0o600,
    "user": 0,
    "group": 0,
}


def test_a_link_of_a_snapshot_is_read() -> None:
    assert msgspec.convert(GOOD, SavedLink).names == ("/dev/shm/sem.a",)


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../gpusnap-link-0"},
        {"file": "core-7.img"},
        {"made": []},
        {"made": ["/etc/passwd"]},
        {"made": ["/dev/shm/../link_remap.7"]},
        {"made": ["link_remap.7"], "names": []},
        {"names": ["/etc/passwd"]},
        {"mode": 0o10000},
        {"user": -1},
    ],
)
def test_a_link_that_leads_elsewhere_is_damage(changes: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(GOOD | changes, SavedLink)
