"""Copies of a program that has abstract Unix sockets, beside the program itself."""

import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpusnap
from gpusnap.errors import CriuError, IncompatibleError
from gpusnap.repository import resolve
from gpusnap.restore import RestoredTarget, RestoreOptions, plan_restore
from gpusnap.target import identity
from tests.e2e.jobs import Site, await_true, start_detached
from tests.e2e.test_new_pids import end, set_variables
from tests.pids import kill

PROGRAM = """
import socket, sys

name = "\\0" + sys.argv[1]

def bound(kind, name):
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(name)
    return made

def connected(kind, name):
    made = socket.socket(socket.AF_UNIX, kind)
    made.connect(name)
    return made

drivers = bound(socket.SOCK_SEQPACKET, "\\0cuda-uvmfd-" + sys.argv[1] + "\\0")
letters = bound(socket.SOCK_DGRAM, name)
writer = connected(socket.SOCK_DGRAM, name)
server = bound(socket.SOCK_STREAM, name)
server.listen()
client = connected(socket.SOCK_STREAM, name)
accepted, _ = server.accept()
open(sys.argv[2], "x").close()  # only now may others connect
left, right = socket.socketpair()
pairs = ((client, accepted), (accepted, client), (left, right), (writer, letters))
number = 0
while True:
    asking, _ = server.accept()
    number += 1
    said = b"%d" % number
    for sender, receiver in pairs:
        sender.send(said)
        said = receiver.recv(64)
    names = b" ".join(each.getsockname()[1:] for each in (server, letters, drivers))
    asking.send(said + b" " + names)
    asking.close()
"""
NAME = f"gpusnap-e2e-{uuid.uuid4()}"
Restore = Callable[[], RestoredTarget]


def ask(name: str) -> str:
    """Have a program send something over its connections, and tell what its sockets are called."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(60)
        asking.connect(f"\0{name}")
        said = b""
        while part := asking.recv(1000):  # to the end: then the program has hung up
            said += part
        return said.decode()


@pytest.fixture
def root_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The program, saved as ``one``, which runs on."""
    site = Site.make(tmp_path / "site")
    set_variables(monkeypatch, site)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    listens = tmp_path / "listens"
    command = [sys.executable, str(program), NAME, str(listens)]
    start_detached(command, tmp_path / "pid", site.environment)
    pid = int((tmp_path / "pid").read_text())
    await_true(listens.exists, "it listens")
    assert ask(NAME)
    gpusnap.create_checkpoint(pid, "one")
    yield pid
    if identity(pid) is not None:
        kill(pid)
        await_true(lambda: identity(pid) is None, "it is gone")


@pytest.fixture
def restore(root_pid: int) -> Iterator[Restore]:
    made: list[RestoredTarget] = []

    def run() -> RestoredTarget:
        made.append(gpusnap.restore_checkpoint("one", new_pids=True))
        return made[-1]

    yield run
    for target in made:
        end(target)


def test_three_copies_beside_the_program(root_pid: int, restore: Restore) -> None:
    image = resolve("one").images / "files.img"
    before = image.read_bytes()
    for _ in range(3):
        restore()
    for end_of_name in ("", "-2", "-3", "-4"):
        name = NAME + end_of_name
        assert ask(name) == f"2 {name} {name} cuda-uvmfd-{name}\0"
    assert ask(NAME).startswith("3 ")
    assert image.read_bytes() == before, "the snapshot stays as it was"


def test_a_copy_s_names_are_told_beforehand(root_pid: int) -> None:
    copy = plan_restore("one", options=RestoreOptions(new_pids=True)).findings
    renamed = [each for each in copy if each.code == "abstract-socket-renamed"]
    assert sorted(each.severity for each in renamed) == ["info", "warning"]
    assert f"@{NAME} is in use: the copy has @{NAME}-2" in renamed[-1].text


def test_with_its_old_pids_it_needs_its_name(root_pid: int) -> None:
    os.kill(root_pid, signal.SIGKILL)
    await_true(lambda: identity(root_pid) is None, "it is gone")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(f"\0{NAME}")
        with pytest.raises(IncompatibleError) as caught:
            gpusnap.restore_checkpoint("one")
        assert f"The abstract Unix socket @{NAME} of the snapshot is in use" in str(caught.value)
        with pytest.raises(CriuError, match="The name of a Unix socket of the target is taken"):
            gpusnap.restore_checkpoint("one", force=["abstract-socket-taken"])
    target = gpusnap.restore_checkpoint("one")
    assert target.root_pid == root_pid
    assert ask(NAME).startswith("2 ")
    end(target)
