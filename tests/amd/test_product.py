"""gpusnap as a user runs it: the real CRIU, its real amdgpu plugin, and a simulated KFD.

The plugin is no part of Debian's CRIU; ``GPUSNAP_AMDGPU_PLUGIN`` names one for these tests.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusnap.criu import find_criu, search_criu
from gpusnap.repository import Repository
from tests.amd.simulated import (
    BUFFERS,
    CHECKPOINT,
    PLUGIN_VARIABLE,
    PROCESS_INFO,
    RESTORE,
    RESUME,
    KfdMachine,
    KfdProgram,
    build,
)

GPU = 1001
"""The gpu_id of the GPU that the program began on."""
OTHER_GPU = 2002
EIO, EPERM, EINVAL = 5, 1, 22


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KfdMachine]:
    if os.geteuid() != 0:
        pytest.skip("Needs root: CRIU is used as root")
    if not Path(os.environ.get(PLUGIN_VARIABLE, "")).is_file():
        pytest.skip(f"Needs CRIU's amdgpu plugin: {PLUGIN_VARIABLE} names none")
    if search_criu().criu is None:
        pytest.skip("Needs CRIU")
    built = tmp_path_factory.mktemp("simkfd")
    build(built)
    machine = KfdMachine(tmp_path_factory.mktemp("machine"), built)
    try:
        if not machine.ready:
            pytest.skip("Needs a mount namespace with device nodes of its own")
        yield machine
    finally:
        machine.close()


@pytest.fixture
def program(machine: KfdMachine) -> Iterator[KfdProgram]:
    machine.use_gpu(GPU)
    program = machine.start_program()
    machine.forget_events()
    yield program
    program.kill()
    machine.free_memory()


@pytest.fixture(scope="module")
def saved(machine: KfdMachine) -> KfdProgram:
    """A program that was saved as ``saved`` and is gone, as is its memory."""
    machine.use_gpu(GPU)
    program = machine.start_program()
    run = machine.gpusnap("checkpoint", "--kill", program.pid, "--name", "saved")
    assert run.returncode == 0, run.stderr
    machine.free_memory()
    return program


@pytest.fixture
def gone(machine: KfdMachine, saved: KfdProgram) -> Iterator[KfdProgram]:
    machine.use_gpu(GPU)
    assert not saved.alive
    machine.forget_events()
    yield saved
    saved.kill()
    machine.free_memory()


def refused(run: "subprocess.CompletedProcess[str]", *words: str, code: int | None = None) -> None:
    assert run.returncode not in {0, 1}, run.stderr
    assert code is None or run.returncode == code
    for each in words:
        assert each in run.stderr, run.stderr


def unharmed(machine: KfdMachine, program: KfdProgram) -> None:
    """The target runs on, and nothing was published."""
    assert program.counts()
    repository = machine.folder / "repository"
    if repository.exists():
        names = {each.name for each in Repository.open(repository).snapshots()}
        assert names <= {"saved"}


def test_kill_and_restore(machine: KfdMachine, gone: KfdProgram) -> None:
    manifest = Repository.open(machine.folder / "repository").find("saved").manifest
    assert (manifest.backend, manifest.engine.value) == ("amd", "criu-plugin")
    assert manifest.host.criu_version == find_criu().version_text
    memory, files = manifest.memory, {file.path for file in manifest.files}
    assert memory is not None
    assert memory.images == 8 + sum(map(len, BUFFERS.values()))
    assert not any("amdgpu-pages" in path for path in files)
    assert {"regions/index", "criu/inventory.sealed"} <= files
    before = gone.steps
    run = machine.gpusnap("restore", "saved")
    assert run.returncode == 0, run.stderr
    assert machine.events == ["restore", "resume"]
    assert machine.read_memory() == BUFFERS
    assert machine.leftovers == []
    assert gone.counts()
    assert gone.steps > before


def test_onto_another_gpu_and_a_dump_without_memory(machine: KfdMachine, gone: KfdProgram) -> None:
    """CRIU says success of the second dump, and would have killed the process."""
    machine.use_gpu(OTHER_GPU)
    run = machine.gpusnap("restore", "saved")
    assert run.returncode == 0, run.stderr
    assert machine.read_memory() == BUFFERS
    assert gone.counts()
    assert machine.events == ["restore", "resume"]
    (machine.state / "gpus").write_text(f"{GPU}\n")  # the process goes on calling it that
    (machine.state / "process").write_text(f"{gone.pid}\n")
    run = machine.gpusnap(
        "checkpoint", "--kill", gone.pid, "--name", "second", SIMKFD_ACTUAL=str(OTHER_GPU)
    )
    refused(run, "amdgpu-pages-", "is missing, the buffers of GPU 0x3e9 have 69632")
    assert machine.events == ["process-info", "checkpoint", "unpause"]
    unharmed(machine, gone)


def test_queues_that_do_not_start(machine: KfdMachine, gone: KfdProgram) -> None:
    """CRIU says success of it."""
    run = machine.gpusnap("restore", "saved", SIMKFD_FAIL=f"{RESUME}:{EIO}")
    refused(run, "did not start the GPU queues of a restored process, though CRIU says success")
    assert machine.events == ["restore", "resume"]
    assert not gone.alive
    assert machine.leftovers == []


def _flip(pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[4096 + 7] ^= 1
    pack.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (_flip, "is damaged in the chunk at 4096 (amdgpu-pages-"),
        (lambda pack: os.truncate(pack, 8192), "000.pack has 8192 bytes instead of"),
        (Path.unlink, "000.pack is missing"),
    ],
    ids=["a flipped bit", "a file cut short", "a missing file"],
)
def test_a_damaged_pack(
    machine: KfdMachine, gone: KfdProgram, harm: Callable[[Path], None], told: str
) -> None:
    pack = machine.folder / "repository/saved/regions/000.pack"
    before = pack.read_bytes()
    harm(pack)
    try:
        verified, run = machine.gpusnap("verify", "saved"), machine.gpusnap("restore", "saved")
    finally:
        pack.write_bytes(before)
    refused(verified, code=12)
    refused(run, told, code=12)
    assert told in verified.stdout + verified.stderr
    assert not gone.alive
    assert machine.events == []
    assert machine.leftovers == []


def test_snapshots_share_what_stays_the_same(
    machine: KfdMachine, program: KfdProgram, tmp_path: Path
) -> None:
    """Also behind a buffer that grew meanwhile, and that memory comes back like the rest."""
    repository = tmp_path / "repository"
    options = ("checkpoint", program.pid, "--incremental", "--name")
    for name, more in (("one", ()), ("two", ("--kill",))):
        run = machine.gpusnap(*options, name, *more, GPUSNAP_REPO=str(repository))
        assert run.returncode == 0, run.stderr
        first, second = BUFFERS
        grown = {first: BUFFERS[first] + b"more" * 1024, second: BUFFERS[second]}
        if name == "one":
            machine.write_memory(grown)
    memory = Repository.open(repository).find("two").manifest.memory
    assert memory is not None
    assert memory.reused == len(BUFFERS[second])
    found = machine.gpusnap("diff", "one", "two", GPUSNAP_REPO=str(repository))
    assert "amdgpu-pages-" in found.stdout, found.stderr
    machine.free_memory()
    run = machine.gpusnap("restore", "two", GPUSNAP_REPO=str(repository))
    assert run.returncode == 0, run.stderr
    assert machine.read_memory() == grown
    assert program.counts()


def test_a_dump_that_fails_half_way(machine: KfdMachine, program: KfdProgram) -> None:
    fail = f"{CHECKPOINT}:{EIO}"
    run = machine.gpusnap("checkpoint", program.pid, "--name", "x", SIMKFD_FAIL=fail)
    refused(
        run, "KFD refused to save the process", "CRIU left the GPU queues of the process paused"
    )
    assert machine.events == ["process-info", "checkpoint"]
    unharmed(machine, program)
    fail = f"{CHECKPOINT}:{EINVAL}"
    run = machine.gpusnap("checkpoint", program.pid, "--name", "x", SIMKFD_FAIL=fail)
    refused(run, "it may use other GPUs than CRIU is shown")
    unharmed(machine, program)


def test_a_process_that_kfd_does_not_tell(machine: KfdMachine, program: KfdProgram) -> None:
    fail = f"{PROCESS_INFO}:{EPERM}"
    run = machine.gpusnap("checkpoint", program.pid, "--name", "x", SIMKFD_FAIL=fail)
    refused(run, "KFD refused to pause the process, on which CRIU's amdgpu plugin crashes")
    assert "queues of the process paused" not in run.stderr
    unharmed(machine, program)


def test_an_old_kfd(machine: KfdMachine, program: KfdProgram) -> None:
    run = machine.gpusnap("checkpoint", program.pid, "--name", "x", SIMKFD_MINOR="7")
    refused(run, "KFD's interface has version 1.7; a checkpoint needs 1.8", "amd-kfd-version")
    assert machine.events == []
    unharmed(machine, program)


def test_a_process_without_a_mapping_of_a_device(machine: KfdMachine) -> None:
    """CRIU's dump lacks the plugin's name then, and no restore would work."""
    machine.use_gpu(GPU)
    program = machine.start_program(mapped=False)
    run = machine.gpusnap("checkpoint", "--kill", program.pid, "--name", "x")
    refused(run, "CRIU's plugin amdgpu_plugin took no part in the dump")
    unharmed(machine, program)
    program.kill()
    machine.free_memory()


def test_a_gpu_with_older_firmware(machine: KfdMachine, gone: KfdProgram) -> None:
    machine.use_gpu(GPU, fw_version=100)
    run = machine.gpusnap("restore", "saved")
    refused(run, "fw_version was 177, is 100", "KFD_FW_VER_CHECK=0")
    forced = machine.gpusnap("restore", "saved", "--force", "device-property")
    refused(forced, "CRIU's amdgpu plugin found no GPUs that may replace the saved ones")
    assert not gone.alive
    assert machine.events == []
    run = machine.gpusnap("restore", "saved", KFD_FW_VER_CHECK="0")
    assert run.returncode == 0, run.stderr
    assert machine.read_memory() == BUFFERS


def test_a_machine_with_fewer_gpus(machine: KfdMachine, gone: KfdProgram) -> None:
    machine.hide_gpu()
    refused(machine.gpusnap("restore", "saved"), "which cannot work here", code=13)
    assert not gone.alive


def test_a_restore_that_does_not_end(machine: KfdMachine, gone: KfdProgram) -> None:
    run = machine.gpusnap("restore", "saved", "--timeout", "2s", SIMKFD_HANG=str(RESTORE))
    refused(run, "CRIU did not end within 2 s")
    assert not gone.alive
