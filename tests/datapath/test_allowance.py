"""How much memory may be taken: the least of what the machine has and every cgroup allows."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.datapath.allowance import available
from gpusnap.datapath.buffers import default_budget

GIB = 1 << 30
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


class Machine:
    """A root folder with what the kernel shows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: 999 kB\nMemAvailable: {100 * GIB >> 10} kB\n")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def group(self, path: str, limit: int | str, used: int, inactive: int = 0) -> None:
        self.write(f"{path}/memory.max", f"{limit}\n")
        self.write(f"{path}/memory.current", f"{used}\n")
        self.write(f"{path}/memory.stat", f"anon 1\ninactive_file {inactive}\n")

    def group_v1(self, path: str, limit: int, used: int, inactive: int = 0) -> None:
        self.write(f"{path}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{path}/memory.usage_in_bytes", f"{used}\n")
        stat = f"inactive_file 7\ntotal_inactive_file {inactive}\n"
        self.write(f"{path}/memory.stat", stat)

    def inside(self, mounts: str, membership: str) -> int:
        self.write("proc/self/mountinfo", mounts)
        self.write("proc/self/cgroup", membership)
        return available(self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_control_groups(machine: Machine) -> None:
    assert available(machine.root) == 100 * GIB


def test_no_limit(machine: Machine) -> None:
    machine.group("sys/fs/cgroup/job", "max", 5 * GIB)
    assert machine.inside(V2, "0::/job\n") == 100 * GIB


@pytest.mark.parametrize("limited", ["sys/fs/cgroup/a/b", "sys/fs/cgroup/a"])
def test_the_limit_of_any_parent(machine: Machine, limited: str) -> None:
    for group in ("sys/fs/cgroup/a/b", "sys/fs/cgroup/a"):
        machine.group(group, "max", GIB)
    machine.group(limited, 4 * GIB, GIB)
    assert machine.inside(V2, "0::/a/b\n") == 3 * GIB
    assert machine.inside(V2, "0::/other\n") == 100 * GIB


def test_page_cache_counts_as_free(machine: Machine) -> None:
    machine.group("sys/fs/cgroup/job", 4 * GIB, 4 * GIB, inactive=3 * GIB)
    assert machine.inside(V2, "0::/job\n") == 3 * GIB


def test_more_used_than_allowed(machine: Machine) -> None:
    machine.group("sys/fs/cgroup/job", GIB, 2 * GIB)
    assert machine.inside(V2, "0::/job\n") == 0


def test_the_machine_has_less(machine: Machine) -> None:
    machine.group("sys/fs/cgroup/job", 400 * GIB, GIB)
    assert machine.inside(V2, "0::/job\n") == 100 * GIB


def test_version_1(machine: Machine) -> None:
    machine.group_v1("sys/fs/cgroup/memory", 1 << 62, 9 * GIB)
    machine.group_v1("sys/fs/cgroup/memory/job", 8 * GIB, 5 * GIB, inactive=GIB)
    membership = "3:cpu:/elsewhere\n2:memory:/job\n0::/\n"
    assert machine.inside(V1, membership) == 4 * GIB


def test_both_versions(machine: Machine) -> None:
    machine.group_v1("sys/fs/cgroup/memory/job", 8 * GIB, GIB)
    mounts = V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    assert machine.inside(mounts, "2:memory:/job\n0::/user\n") == 7 * GIB


@pytest.mark.parametrize("membership", ["0::/docker/abc\n", "0::/\n"])
def test_a_container(machine: Machine, membership: str) -> None:
    machine.group("sys/fs/cgroup", 2 * GIB, GIB)
    mounts = V2.replace(" / /sys", " /docker/abc /sys")
    assert machine.inside(mounts, membership) == GIB


def test_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusnap.datapath.buffers.available", lambda: 4 * GIB)
    assert default_budget() == GIB


@pytest.fixture
def own_group(root: None) -> Iterator[Path]:
    """A real control group with a limit of 256 MiB."""
    for folder, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(folder, f"gpusnap-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                with (group / limit).open("r+") as file:
                    file.write(str(256 << 20))
                yield group
            finally:
                remove(group)
            return
    pytest.skip("No control group for memory can be made here")


def remove(group: Path) -> None:
    """Remove a group, which a process that has ended may keep busy for a moment."""
    deadline = time.monotonic() + 60
    while group.exists():
        with contextlib.suppress(OSError):
            group.rmdir()
        assert time.monotonic() < deadline, f"{group} cannot be removed"
        time.sleep(0.01)


def test_a_real_group(own_group: Path) -> None:
    program = "from gpusnap.datapath.buffers import default_budget; print(default_budget())"
    script = 'echo $$ > "$1"/cgroup.procs && exec "$2" -c "$3"'
    command = ["sh", "-c", script, "sh", str(own_group), sys.executable, program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0 < int(ran.stdout) <= 64 << 20
