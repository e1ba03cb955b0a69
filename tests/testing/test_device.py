from pathlib import Path

import pytest

from gpusnap.testing import Machine
from tests.testing.running import run_code

OPEN = """
from gpusnap.testing.device import *
from gpusnap.errors import UsageError
device = SimulatedDevice.open()
"""


def test_bytes_come_back(machine: Machine) -> None:
    code = (
        OPEN
        + """
buffer = device.allocate(10)
buffer.copy_in(b"abc", 2)
print(buffer.copy_out(), buffer.copy_out(2, 3), buffer.size)
"""
    )
    assert run_code(machine, code) == f"{bytes(2) + b'abc' + bytes(5)!r} b'abc' 10\n"


def test_kernel_works_on_all_its_buffers(machine: Machine) -> None:
    code = (
        OPEN
        + """
def add(left, right):
    for index, value in enumerate(right):
        left[index] += value
    return sum(left)
one, two = device.allocate(3), device.allocate(3)
one.copy_in(bytes([1, 2, 3]))
two.copy_in(bytes([10, 20, 30]))
print(device.launch(add, one, two), list(one.copy_out()))
"""
    )
    assert run_code(machine, code) == "66 [11, 22, 33]\n"


def test_memory_is_mapped_only_while_a_kernel_runs(machine: Machine) -> None:
    code = (
        OPEN
        + """
from pathlib import Path
def mapped():
    return "/memory/" in Path("/proc/self/maps").read_text()
buffer = device.allocate(4096)
print(mapped(), device.launch(lambda view: mapped(), buffer), mapped())
"""
    )
    assert run_code(machine, code) == "False True False\n"


def test_memory_runs_out_and_comes_back(machine: Machine) -> None:
    code = (
        OPEN
        + """
buffer = device.allocate(6 << 20)
print(device.memory_free)
try:
    device.allocate(3 << 20)
except OutOfMemoryError as error:
    print(error)
buffer.free()
print(device.memory_free, device.allocate(8 << 20).size)
try:
    buffer.copy_out()
except UsageError as error:
    print(error)
"""
    )
    first, refused, after, freed = run_code(machine, code).splitlines()
    assert first == str(2 << 20)
    assert refused.endswith(f"has {2 << 20} bytes free, {3 << 20} are needed")
    assert after == f"{8 << 20} {8 << 20}"
    assert freed == "This device memory was given back"


def test_second_device_has_its_own_memory(machine: Machine) -> None:
    code = (
        OPEN
        + """
other = SimulatedDevice.open(1)
other.allocate(8 << 20)
print(device.memory_free, other.memory_free, device.uuid != other.uuid)
"""
    )
    assert run_code(machine, code) == f"{8 << 20} 0 True\n"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("SimulatedDevice.open(2)", "has 2 devices, none has index 2"),
        ("SimulatedDevice.open(-1)", "none has index -1"),
        ("device.allocate(0)", "of 0 bytes cannot be allocated"),
        ("device.allocate(4).copy_in(b'12345')", "outside device memory of 4 bytes"),
        ("device.allocate(4).copy_out(2, 3)", "outside device memory of 4 bytes"),
        ("device.allocate(4).copy_out(-1, 1)", "outside device memory of 4 bytes"),
        ("device.launch(keep, device.allocate(4))", "kept a view of device memory"),
    ],
)
def test_refusals(machine: Machine, call: str, sentence: str) -> None:
    code = (
        OPEN
        + f"""
kept = []
def keep(memory):
    kept.append(memory[:])
try:
    {call}
except (UsageError, SimulatedDeviceError) as error:
    print(error)
"""
    )
    assert sentence in run_code(machine, code)


def test_error_of_a_kernel_comes_through(machine: Machine) -> None:
    code = (
        OPEN
        + """
def kernel(memory):
    part = memory[:2]
    raise ZeroDivisionError
try:
    device.launch(kernel, device.allocate(4))
except ZeroDivisionError:
    print("through")
print(device.launch(len, device.allocate(4)))
"""
    )
    assert run_code(machine, code) == "through\n4\n"


FORK = """
import os
buffer = device.allocate(4096)
def refused():
    return sum("landlock" in os.readlink(f"/proc/self/fd/{fd}") or
               "userfaultfd" in os.readlink(f"/proc/self/fd/{fd}") or
               "gpusnap-" in os.readlink(f"/proc/self/fd/{fd}")
               for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}"))
print(refused(), flush=True)
if os.fork() == 0:
    print(refused())
    for use in (buffer.copy_out, SimulatedDevice.open):
        try:
            use()
        except DeviceLostError:
            print("lost", flush=True)
    raise SystemExit
os.wait()
print(len(buffer.copy_out()))
"""


@pytest.mark.parametrize(("option", "held"), [("", 0), ("keep_in_children=True", 1)])
def test_forked_child_has_no_device_state(machine: Machine, option: str, held: int) -> None:
    code = OPEN.replace("open()", f"open({option})") + FORK
    assert run_code(machine, code) == f"1\n{held}\nlost\nlost\n4096\n"


def test_exit_gives_everything_back(machine: Machine) -> None:
    run_code(machine, OPEN + "device.allocate(4096)")
    left = [path for path in machine.path.rglob("*") if path.is_file()]
    assert {path.name for path in left} == {"devices.json", "lock"}


def test_wiped_memory_is_lost(machine: Machine) -> None:
    code = (
        OPEN
        + f"""
import shutil
buffer = device.allocate(4096)
shutil.rmtree({str(machine.path / "memory")!r})
try:
    buffer.copy_out()
except DeviceLostError as error:
    print(error)
"""
    )
    assert "is lost" in run_code(machine, code)


def test_wiped_registry_is_noticed(machine: Machine, tmp_path: Path) -> None:
    code = (
        OPEN
        + f"""
import os, time
from pathlib import Path
buffer = device.allocate(4096)
folder = Path({str(machine.path / "processes")!r})
registered = folder / str(os.getpid()) / "process.json"
registered.unlink()
while not registered.exists():
    time.sleep(0.01)
print(len(buffer.copy_out()))
"""
    )
    assert run_code(machine, code) == "4096\n"
