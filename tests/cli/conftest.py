"""The command line run in this process, on folders of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from gpusnap.cli._main import run
from gpusnap.criu import private_criu_directory, search_criu
from gpusnap.repository import Repository
from gpusnap.target import is_zombie
from gpusnap.testing import SIM_VARIABLE, Machine, create_machine


class Answer(NamedTuple):
    """What a command line led to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    @property
    def failure(self) -> Any:
        """The last line on standard error, of an answer in JSON."""
        return msgspec.json.decode(self.err.splitlines()[-1])

    def refused(self, code: int, sentence: str) -> None:
        """Check that it ended so, in one sentence and nothing on standard output."""
        first = self.err.splitlines()[0]
        assert (self.code, first, self.out) == (code, f"gpusnap: {sentence}", "")


Command = Callable[..., Answer]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = private_criu_directory()
    for name in [name for name in os.environ if name.startswith("GPUSNAP_")]:
        if name != "GPUSNAP_CRIU":
            monkeypatch.delenv(name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/criu").symlink_to(private)
    monkeypatch.setenv("GPUSNAP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> Answer:
        code = run([str(argument) for argument in arguments])
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture
def real_criu(root: None) -> None:
    if search_criu().criu is None:
        pytest.fail("No CRIU that works: run gpusnap setup-criu")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "repo")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A simulated machine with two devices."""
    made = create_machine(tmp_path / "machine", devices=2)
    monkeypatch.setenv(SIM_VARIABLE, str(made.path))
    return made


@pytest.fixture
def zombie() -> Iterator[int]:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    while not is_zombie(pid):
        time.sleep(0.001)
    yield pid
    os.waitpid(pid, 0)


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process of its own session that does nothing."""
    with subprocess.Popen(
        ["sleep", "600"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        # Popen returns before the kernel has given it its new name and arguments
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.001)
        yield process.pid
        process.kill()


_TRACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
if libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None):
    raise OSError(ctypes.get_errno(), "ptrace")
print("traced", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def traced(root: None, sleeper: int) -> Iterator[int]:
    """A process under a debugger."""
    with subprocess.Popen(
        [sys.executable, "-c", _TRACER, str(sleeper)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == b"traced\n"
        yield sleeper
        tracer.kill()
