"""Whatever bytes stand in the driver's files, listing and probing end without an exception."""

import re
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpusnap_amd import AmdBackend
from tests.amd.invented import PROPERTIES, Machine, make_target

NODE = "class/kfd/kfd/topology/nodes/1"
BOARD = "bus/pci/devices/0000:c1:00.0"
FILES = (
    f"{NODE}/gpu_id",
    f"{NODE}/properties",
    f"{NODE}/mem_banks/0/properties",
    f"{NODE}/mem_banks/0/used_memory",
    f"{BOARD}/product_name",
    f"{BOARD}/current_compute_partition",
    f"{BOARD}/mem_info_vram_total",
    f"{BOARD}/mem_info_vram_used",
    f"{BOARD}/vbios_version",
    f"{BOARD}/fw_version/smc_fw_version",
    f"{BOARD}/ras/umc_err_count",
    f"{BOARD}/ras/gpu_vram_bad_pages",
    f"{BOARD}/hwmon/hwmon0/temp1_input",
    "class/kfd/kfd/proc/7/vram_1001",
    "module/amdgpu/version",
)

plain = st.binary(max_size=200)
number = st.integers(-(1 << 80), 1 << 80)
line = st.tuples(st.sampled_from(["ue:", "ce:", "heap_type", "size_in_bytes", *PROPERTIES]), number)
written = st.lists(line).map(lambda lines: "".join(f"{a} {b}\n" for a, b in lines).encode())
digits = number.map(lambda value: f"{value}\n".encode())


def ask_everything(root: Path, files: dict[str, bytes]) -> None:
    machine = Machine(root)
    machine.add_gpu(1)
    machine.add_board()
    for path, content in files.items():
        machine.write(path, content)
    backend = AmdBackend(machine.sysfs, machine.proc)
    probe = backend.gpusnap_probe()
    devices = backend.gpusnap_devices()
    assert probe.usable
    assert len(devices) + len(probe.reasons) <= 1
    for device in devices:
        assert device.memory_total is None or device.memory_total >= 0
        assert device.memory_free is None or device.memory_free >= 0
    backend.gpusnap_processes()
    backend.gpusnap_claim(make_target(7))


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(FILES), st.one_of(plain, written, digits)))
def test_any_bytes_in_any_file(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as root:
        # A CPU node is no GPU: the one number in gpu_id that makes the probe unusable.
        if re.fullmatch("-?0+", files.get(f"{NODE}/gpu_id", b"").decode(errors="replace").strip()):
            del files[f"{NODE}/gpu_id"]
        ask_everything(Path(root), files)


@settings(max_examples=80, deadline=None)
@given(st.one_of(plain, written))
def test_any_bytes_in_properties(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        ask_everything(Path(root), {f"{NODE}/properties": content})
