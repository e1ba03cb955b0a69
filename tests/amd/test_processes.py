import subprocess
import sys

import pytest

from gpusnap.target import find_target
from gpusnap.types import Claim, DeviceProcess, DeviceState
from gpusnap_amd import AmdBackend
from tests.amd.invented import UNIQUE, Machine, make_target


@pytest.fixture
def busy(machine: Machine) -> Machine:
    machine.add_gpu(1)
    machine.add_gpu(2, unique_id=2, location_id=0xC200, drm_render_minor=129)
    machine.add_process(70, "/dev/null", "/dev/kfd")
    machine.add_process(71, "/dev/kfd", "/dev/dri/renderD129")
    machine.add_kfd_process(70, {1: 4 << 20, 2: 0})
    return machine


def test_processes_with_video_memory(busy: Machine, backend: AmdBackend) -> None:
    busy.add_kfd_process(99, {1: 0, 2: 123})
    assert backend.gpusnap_processes() == (
        DeviceProcess(pid=70, device_uuid=f"GPU-{UNIQUE:016x}", memory=4 << 20, name="train"),
        DeviceProcess(pid=99, device_uuid=f"GPU-{2:016x}", memory=123, name=None),
    )


def test_processes_by_descriptors_in_a_pid_namespace(busy: Machine, backend: AmdBackend) -> None:
    """Which devices it has open can be told, how much memory it has there cannot."""
    busy.use_namespace("pid:[4026532999]")
    assert backend.gpusnap_processes() == (
        DeviceProcess(pid=71, device_uuid=f"GPU-{2:016x}", name="train"),
    )


def test_processes_by_descriptors_without_a_table(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1)
    machine.add_process(70, "/dev/kfd", "/dev/dri/renderD128")
    machine.add_process(71, "/dev/dri/renderD128")
    assert [process.pid for process in backend.gpusnap_processes()] == [70]


def test_claim_by_the_table_of_kfd(busy: Machine, backend: AmdBackend) -> None:
    claim = backend.gpusnap_claim(make_target(69, 70, 71))
    assert claim == Claim(pids=(70,), reason="KFD's process table lists 70 (train)")


def test_inherited_descriptor_is_no_state(busy: Machine, backend: AmdBackend) -> None:
    claim = backend.gpusnap_claim(make_target(71))
    assert claim == Claim(pids=(), reason="KFD's process table lists no process of the target")


def test_claim_by_descriptors_in_a_pid_namespace(busy: Machine, backend: AmdBackend) -> None:
    busy.add_kfd_process(69, {1: 1})
    busy.add_process(69, "/dev/null")
    busy.use_namespace("pid:[4026532999]")
    claim = backend.gpusnap_claim(make_target(69, 70, 71, 72))
    assert claim == Claim(pids=(70, 71), reason="/dev/kfd is open in 70 (train), 71 (train)")


def test_claim_by_descriptors_without_a_table(machine: Machine, backend: AmdBackend) -> None:
    machine.add_gpu(1)
    machine.add_process(70, "/dev/kfd")
    assert backend.gpusnap_claim(make_target(70)).pids == (70,)


def test_claim_of_a_real_process_without_gpu(machine: Machine) -> None:
    machine.add_gpu(1)
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as child:
        assert AmdBackend(machine.sysfs).gpusnap_claim(find_target(child.pid)).pids == ()


def test_state_of_what_kfd_knows(busy: Machine, backend: AmdBackend) -> None:
    assert backend.gpusnap_state((69, 70, 71)) == {70: DeviceState.RUNNING}
    assert backend.gpusnap_unlock((69, 70, 71)) == {70: DeviceState.RUNNING}
