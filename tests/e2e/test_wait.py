"""``gpusnap restore --wait``: it stays in the restored tree's place, with its exit code."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.ending import kill, wait_gone
from gpusnap.target import identity
from gpusnap.types import ProcessId
from tests.e2e.jobs import Site, await_true, start_detached

PROGRAM = """\
import signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    open(sys.argv[2], "x").close()
    while True:
        talker, _ = listener.accept()
        with talker:
            sys.exit(int(talker.recv(9)))
"""


@pytest.fixture
def listener(tmp_path: Path) -> Path:
    """A socket in a folder of its own."""
    path = tmp_path / "folder/listener"
    path.parent.mkdir()
    return path


@pytest.fixture
def process(site: Site, listener: Path) -> Iterator[ProcessId]:
    """What is saved and gone, and what comes back of it."""
    pid_file, listens = site.folder / "pid", site.folder / "listens"
    command = [sys.executable, "-c", PROGRAM, str(listener), str(listens)]
    start_detached(command, pid_file, site.environment)
    await_true(listens.exists, "the program listens")
    process = identity(int(pid_file.read_text()))
    assert process is not None
    saved = site.gpusnap("checkpoint", process.pid, "one", "--kill")
    assert saved.returncode == 0, saved.stderr
    yield process
    if left := identity(process.pid):
        kill(left)
        wait_gone([left], 30)


def waiting(site: Site, *options: str) -> "subprocess.Popen[str]":
    """A restore that waits; it has said so."""
    command = [sys.executable, "-m", "gpusnap", "restore", "one", "--wait", *options]
    started = subprocess.Popen(
        command,
        env=site.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    for line in started.stderr:
        if line.startswith("Restored process "):
            return started
    pytest.fail("It was not restored")


def test_the_exit_code_and_signals(site: Site, process: ProcessId, listener: Path) -> None:
    # As if the program had taken its folder away when it crashed
    shutil.rmtree(listener.parent)
    with waiting(site) as gpusnap, socket.socket(socket.AF_UNIX) as talker:
        talker.connect(str(listener))
        talker.send(b"5")
        assert gpusnap.communicate(timeout=60)[0] == ""
    assert gpusnap.returncode == 5
    shutil.rmtree(listener.parent)
    with waiting(site, "--new-pids") as gpusnap:
        gpusnap.send_signal(signal.SIGTERM)
        gpusnap.communicate(timeout=60)
    assert gpusnap.returncode == 7
    shutil.rmtree(listener.parent)
    with waiting(site) as gpusnap:
        restored = identity(process.pid)
        assert restored is not None
        kill(restored)
        gpusnap.communicate(timeout=60)
    assert gpusnap.returncode == 128 + signal.SIGKILL


BETWEEN = """
import os, signal, subprocess, sys
from types import SimpleNamespace
from gpusnap.cli._interrupts import Interrupts
from gpusnap.handover import wait_for

child = subprocess.Popen(["sleep", "600"])
setting = signal.signal

def send_before(number, handler):
    if number == signal.SIGTERM and not interrupts.late:
        os.kill(os.getpid(), number)
    return setting(number, handler)

with Interrupts() as interrupts:
    interrupts.operation_ended(last=True)
    signal.signal = send_before
    target = SimpleNamespace(init_pid=None, root_pid=child.pid)
    sys.exit(wait_for(target, lambda: interrupts.late))
"""


def test_a_signal_just_before_signals_are_passed_on() -> None:
    done = subprocess.run([sys.executable, "-c", BETWEEN], timeout=100, check=False)
    assert done.returncode == 128 + signal.SIGTERM
