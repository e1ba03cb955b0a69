"""A program whose forked children inherited its device, as data loaders do."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.target import identity
from tests.e2e.jobs import PATIENCE_S, Site, await_true, becomes_true, start_detached
from tests.pids import kill

PROGRAM = """
import os, sys, time
from gpusnap.testing.device import SimulatedDevice

folder = sys.argv[1]
device = SimulatedDevice.open(keep_in_children=True)
buffer = device.allocate(1 << 16)

def count(memory):
    value = int.from_bytes(memory[:8], "little") + 1
    memory[:8] = value.to_bytes(8, "little")
    return value

def write(name, value):
    with open(f"{folder}/{name}.new", "w") as file:
        file.write(str(value))
    os.replace(f"{folder}/{name}.new", f"{folder}/{name}")

receiver, sender = os.pipe()
if os.fork() == 0:  # a loader of data, which the parent waits for
    os.close(receiver)
    number = 0
    while True:
        number += 1
        os.write(sender, b"x")
        write("child", f"{os.getpid()} {number}")
        time.sleep(0.01)
os.close(sender)
while os.read(receiver, 1):
    write("parent", device.launch(count, buffer))
"""


class Family:
    """A parent that uses the device and a child that feeds it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        program = site.folder / "program.py"
        program.write_text(PROGRAM)
        command = [sys.executable, str(program), str(site.folder)]
        start_detached(command, site.folder / "pid", site.environment)
        self.pid = int((site.folder / "pid").read_text())
        for name in ("parent", "child"):
            await_true((site.folder / name).exists, f"the {name} computes")
        self.child = int((site.folder / "child").read_text().split()[0])

    @property
    def count(self) -> int:
        return int((self.site.folder / "parent").read_text())

    def goes_on(self) -> bool:
        before = self.count
        return becomes_true(lambda: self.count > before + 2, PATIENCE_S)

    @property
    def inherited(self) -> list[str]:
        links = []
        for each in Path(f"/proc/{self.child}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the child closed it meanwhile
                links.append(os.readlink(each))
        return [link for link in links if link.startswith(("anon_inode:", "/gpusnap-"))]

    def end(self) -> None:
        for pid in (self.pid, self.child):
            if identity(pid) is not None:
                kill(pid)
            await_true(lambda pid=pid: identity(pid) is None, "the PID is free")


@pytest.fixture
def family(site: Site) -> Iterator[Family]:
    family = Family(site)
    yield family
    family.end()


def test_it_runs_on(family: Family) -> None:
    assert len(family.inherited) == 1
    saved = family.site.gpusnap("checkpoint", family.pid, "one")
    assert saved.returncode == 0, saved.stderr
    assert family.inherited == []
    assert family.goes_on()


def test_killed_and_restored(family: Family) -> None:
    saved = family.site.gpusnap("checkpoint", family.pid, "one", "--kill")
    assert saved.returncode == 0, saved.stderr
    before = family.count
    restored = family.site.gpusnap("restore", "one")
    assert restored.returncode == 0, restored.stderr
    assert family.goes_on()
    assert family.count > before


@pytest.mark.parametrize("point", ["started:scrub", "finished:scrub", "criu:post-dump"])
def test_gpusnap_killed_then_recovered(family: Family, point: str) -> None:
    report = family.site.folder / "report"
    ran = family.site.run(
        "-m", "tests.e2e.faults", point, "gpusnap", report, "checkpoint", family.pid
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    recovered = family.site.gpusnap("recover")
    assert recovered.returncode == 0, recovered.stderr
    assert family.goes_on()
