"""The simulated device under the real CRIU."""

import subprocess
import time
from pathlib import Path

import pytest

from gpusnap.criu import Criu, search_criu
from gpusnap.plugins import Backend
from gpusnap.target import find_target
from gpusnap.testing import Machine
from gpusnap.testing import guard as guards
from gpusnap.testing.program import reference_log
from gpusnap.types import DeviceMap, DeviceState
from tests.testing.conftest import StartProgram
from tests.testing.running import SLOW, STEPS, Program, await_true

SECOND = 1_000_000

pytestmark = pytest.mark.usefixtures("root")


@pytest.fixture(scope="module")
def criu() -> Criu:
    found = search_criu().criu
    if found is None:
        pytest.skip("Needs CRIU: gpusnap setup-criu")
    return found


class Images:
    """One folder for a dump of one process."""

    def __init__(self, criu: Criu, folder: Path) -> None:
        self._criu = criu
        self._folder = folder
        folder.mkdir()

    def _run(self, verb: str, *options: str) -> bool:
        log = self._folder / f"{verb}.log"
        where = ["--images-dir", str(self._folder), "--log-file", str(log), "-v4"]
        done = subprocess.run(
            [*self._criu.command, verb, *where, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode == 0

    def dump(self, pid: int, *options: str) -> bool:
        return self._run("dump", "--tree", str(pid), *options)

    def restore(self) -> bool:
        return self._run("restore", "--restore-detached")

    def said(self, verb: str) -> str:
        return (self._folder / f"{verb}.log").read_text(errors="replace")


@pytest.fixture
def images(criu: Criu, tmp_path: Path) -> Images:
    return Images(criu, tmp_path / "images")


def test_dump_without_device_checkpoint_fails(
    images: Images, backend: Backend, program: Program
) -> None:
    assert not images.dump(program.pid)
    assert "Can't dump file" in images.said("dump")
    program.compute()
    backend.lock(program.pids, 10 * SECOND)
    assert not images.dump(program.pid)
    backend.unlock(program.pids)
    program.compute()


@pytest.mark.parametrize("kind", [guards._landlock, guards._userfaultfd, guards._message_queue])
def test_each_guard_is_refused(
    images: Images, machine: Machine, kind: object, tmp_path: Path
) -> None:
    name = getattr(kind, "__name__", "")
    code = f"""
import time
from gpusnap.testing import guard
descriptor = guard.{name}()
with open({str(tmp_path / "log")!r}, "ab", buffering=0) as log:
    log.write(b"%d\\n" % descriptor)
    time.sleep(600)
"""
    program = Program(machine, tmp_path / "log", "-c", code)
    try:
        program.compute(1)
        if program.log.read_text() == "-1\n":
            pytest.skip(f"This kernel has no {name}")
        assert not images.dump(program.pid, "--leave-running")
        assert "Dump files (pid:" in images.said("dump")
    finally:
        program.kill()


def test_checkpointed_program_is_dumped_and_runs_on(
    images: Images, backend: Backend, start: StartProgram
) -> None:
    program = start(STEPS, **SLOW)
    program.compute()
    backend.lock(program.pids, 10 * SECOND)
    backend.checkpoint(program.pids)
    assert images.dump(program.pid, "--leave-running"), images.said("dump")
    assert program.stands_still()
    backend.restore(program.pids, DeviceMap())
    backend.unlock(program.pids)
    assert program.finish() == reference_log(STEPS)


def test_killed_and_restored_program_has_the_same_result(
    criu: Criu, tmp_path: Path, backend: Backend, start: StartProgram
) -> None:
    program = start(STEPS, **SLOW)
    for number in range(2):
        program.compute()
        images = Images(criu, tmp_path / f"images-{number}")
        backend.lock(program.pids, 10 * SECOND)
        backend.checkpoint(program.pids)
        assert images.dump(program.pid), images.said("dump")
        await_true(program.gone, "the end")
        assert backend.processes() == ()
        assert images.restore(), images.said("restore")
        assert backend.state(program.pids) == {program.pid: DeviceState.CHECKPOINTED}
        assert backend.claim(find_target(program.pid)).pids == program.pids
        assert program.stands_still()
        backend.restore(program.pids, DeviceMap())
        backend.unlock(program.pids)
    assert program.finish() == reference_log(STEPS)


def test_a_restore_leaves_other_programs_their_memory(
    images: Images, backend: Backend, start: StartProgram
) -> None:
    others = [start(STEPS, **SLOW), start(STEPS, **SLOW)]
    for each in others:
        each.compute()
    program = start(STEPS, **SLOW)
    program.compute()
    backend.lock(program.pids, 10 * SECOND)
    backend.checkpoint(program.pids)
    assert images.dump(program.pid), images.said("dump")
    await_true(program.gone, "the end")
    time.sleep(0.1)  # the restored program's clock stands back by this: some ticks
    assert images.restore(), images.said("restore")
    backend.restore(program.pids, DeviceMap())
    backend.unlock(program.pids)
    for each in (*others, program):
        assert each.finish() == reference_log(STEPS)


CARELESS = """
import sys
from pathlib import Path
from gpusnap.testing.device import *
device = SimulatedDevice.open()
device.context.guard.close()
buffer = device.allocate(4096)
with open(sys.argv[1], "ab", buffering=0) as log:
    while not Path(sys.argv[1] + ".go").exists():
        try:
            buffer.copy_out()
            log.write(b"step\\n")
        except DeviceLostError:
            log.write(b"done lost\\n")
            break
"""


def test_program_restored_without_its_device_state_is_told(
    images: Images, machine: Machine, tmp_path: Path, backend: Backend
) -> None:
    log = tmp_path / "log"
    program = Program(machine, log, "-c", CARELESS, log)
    try:
        program.compute()
        assert images.dump(program.pid), images.said("dump")
        await_true(program.gone, "the end")
        assert images.restore(), images.said("restore")
        assert program.finish().endswith("done lost\n")
    finally:
        program.kill()
