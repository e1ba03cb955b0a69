"""What forked children inherited of a device is taken from them, and nothing else."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from gpusnap.scrub import drop_leftovers, find_leftovers
from gpusnap.target import find_target, read_maps
from gpusnap.types import Claim

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="Needs root: processes are traced")

PROGRAM = """
import mmap, os, sys
folder = sys.argv[1]
device = os.open(folder + "/dev0", os.O_RDWR)
control = os.open(folder + "/devctl", os.O_RDWR)
mapping = mmap.mmap(device, 8192)
file = os.open(folder + "/data", os.O_RDWR)
pid = os.fork()
own = os.open(folder + "/devctl", os.O_RDWR) if pid == 0 else 0
if pid == 0:
    print(os.getpid(), device, control, file, own, flush=True)
line = os.read(0, 1)
if pid == 0:
    print("the child goes on", flush=True)
elif line:
    os.waitpid(pid, 0)
    mapping[0] = 7
    os.write(device, b"x")
    print("the parent still has its device", flush=True)
"""


VFORKS = """
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **names) {
    int device = open(names[count - 1], O_RDWR);
    mmap(0, 8192, PROT_READ, MAP_SHARED, device, 0);
    if (vfork() == 0) {
        write(1, "x", 1);
        for (;;) pause();
    }
    return 0;
}
"""


class Pair(NamedTuple):
    """A parent that uses a device, and its child that inherited it."""

    process: "subprocess.Popen[str]"
    folder: Path
    child: int
    device: int
    control: int
    file: int
    own: int

    @property
    def claim(self) -> Claim:
        prefix = str(self.folder / "dev")
        return Claim(pids=(self.process.pid,), reason="it uses one", device_files=(prefix,))

    def holds(self, descriptor: int) -> bool:
        return Path(f"/proc/{self.child}/fd/{descriptor}").exists()

    def maps(self, pid: int) -> list[str]:
        return [each.path for each in read_maps(pid) if each.path.startswith(str(self.folder))]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    for name in ("dev0", "devctl", "data"):
        (tmp_path / name).write_bytes(bytes(8192))
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", textwrap.dedent(PROGRAM), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    numbers = map(int, process.stdout.readline().split())
    yield Pair(process, tmp_path, *numbers)
    process.kill()
    process.communicate()


def test_a_child_loses_what_it_inherited_and_keeps_its_own(pair: Pair) -> None:
    found = find_leftovers(find_target(pair.process.pid), pair.claim)
    (leftover,) = found
    assert leftover.process.pid == pair.child
    assert [mapping.path for mapping in leftover.mappings] == [str(pair.folder / "dev0")]
    names = {number: Path(path).name for number, path in leftover.descriptors}
    assert names[pair.device] == "dev0"
    assert names[pair.control] == "devctl"
    assert pair.own not in names
    assert pair.file not in names

    drop_leftovers(found)
    assert pair.maps(pair.child) == []
    assert pair.maps(pair.process.pid) == [str(pair.folder / "dev0")]
    assert not pair.holds(pair.device)
    assert not pair.holds(pair.control)
    assert pair.holds(pair.own)
    assert pair.holds(pair.file)
    output, _ = pair.process.communicate("yy")
    assert output.splitlines() == ["the child goes on", "the parent still has its device"]
    assert pair.process.returncode == 0


def test_twice_is_once(pair: Pair) -> None:
    found = find_leftovers(find_target(pair.process.pid), pair.claim)
    drop_leftovers(found)
    drop_leftovers(found)
    assert find_leftovers(find_target(pair.process.pid), pair.claim) == ()


def test_a_backend_that_names_no_files_has_nothing_taken(pair: Pair) -> None:
    claim = Claim(pids=(pair.process.pid,), reason="it uses one")
    assert find_leftovers(find_target(pair.process.pid), claim) == ()


def test_a_child_with_device_state_of_its_own_keeps_all(pair: Pair) -> None:
    claim = Claim(
        pids=(pair.process.pid, pair.child),
        reason="both use one",
        device_files=pair.claim.device_files,
    )
    assert find_leftovers(find_target(pair.process.pid), claim) == ()


def test_a_child_that_ended_meanwhile_is_no_error(pair: Pair) -> None:
    found = find_leftovers(find_target(pair.process.pid), pair.claim)
    pair.process.communicate("yy")
    drop_leftovers(found)


def test_a_child_that_runs_another_program_since_is_left_alone(pair: Pair) -> None:
    (leftover,) = find_leftovers(find_target(pair.process.pid), pair.claim)
    assert leftover.vdso is not None
    start, end = leftover.vdso
    drop_leftovers([msgspec.structs.replace(leftover, vdso=(start + 4096, end + 4096))])
    assert pair.holds(pair.device)
    assert pair.maps(pair.child) == [str(pair.folder / "dev0")]


def test_a_child_of_vfork_has_inherited_nothing(tmp_path: Path) -> None:
    (tmp_path / "dev0").write_bytes(bytes(8192))
    source, program = tmp_path / "vforks.c", tmp_path / "vforks"
    source.write_text(VFORKS)
    subprocess.run(["gcc", "-o", program, source], check=True)
    with subprocess.Popen([program, tmp_path / "dev0"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        target = find_target(process.pid)
        assert len(target.processes) == 2
        claim = Claim(
            pids=(process.pid,), reason="it uses one", device_files=(str(tmp_path / "dev"),)
        )
        assert find_leftovers(target, claim) == ()
        for each in reversed(target.pids):
            os.kill(each, signal.SIGKILL)
